#!/usr/bin/env python3
"""The dashboard and the alert rules speak of what the daemon serves.

usage: monitoring_test.py DEPLOY/MONITORING BIN

Starts the daemon of BIN with its HTTP page, lets a client select, reads /metrics, and then checks:
  - alert rules, their unit tests and the scrape configuration, by promtool;
  - every expression of the dashboard, by promtool too;
  - every metric, label and label value that any of them names occurs in what the daemon serves;
  - the dashboard is one that Grafana can lay out: numbers unique, panels side by side.
"""
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

# Labels that Prometheus adds.
ADDED_LABELS = {"job", "instance"}
errors = []


def wrong(text):
    errors.append(text)


def promtool(*arguments):
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        wrong(f"promtool {' '.join(arguments)}:\n{done.stdout}{done.stderr}")


def served(folder, binaries):
    """The text of /metrics of a daemon that has selected something."""
    with socket.socket() as holder:  # so that nobody else is given the port; the daemon shares
        holder.bind(("127.0.0.1", 0))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return served_at(holder.getsockname()[1], folder, binaries)


def served_at(port, folder, binaries):
    with open(f"{folder}/topkd.yaml", "w", encoding="utf-8") as file:
        file.write(f"socket: {{directory: {folder}/run}}\nhttp: {{port: {port}}}\n"
                   "devices:\n  - {device: cpu, threads: 1}\nbuckets: []\n")
    with open(f"{folder}/log", "w", encoding="utf-8") as log:
        daemon = subprocess.Popen([f"{binaries}/topkd", "--config", f"{folder}/topkd.yaml",
                                   "--allow-shared-pid1"], stderr=log)
    try:
        subprocess.run([f"{binaries}/first_client"], check=True, stdout=subprocess.DEVNULL,
                       timeout=60, env={**os.environ, "TOPKD_URL": f"ipc://{folder}/run/topkd.sock"})
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
                    text = page.read().decode()
                if re.search(r'topkd_requests_total\{[^}]*code="ok"\} [1-9]', text):
                    return text
            except urllib.error.URLError:
                pass
            time.sleep(0.1)
        with open(f"{folder}/log", encoding="utf-8") as log:
            sys.exit(f"monitoring_test: no figures in /metrics; the daemon's log:\n{log.read()}")
    finally:
        daemon.terminate()
        daemon.wait(timeout=30)


def series_of(text):
    """Families by type, and for each series name its labels with their values."""
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    labels = {}
    for name, inside in re.findall(r"^(topkd_\w+)(?:\{(.*)\})? \S+$", text, re.M):
        seen = labels.setdefault(name, {})
        for label, value in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', inside):
            seen.setdefault(label, set()).add(value)
    return types, labels


def family_of(name, types):
    if name in types:
        return name
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    return base if types.get(base) == "histogram" else None


def check_expression(where, expression, types, labels):
    """Returns the families that the expression names."""
    families = set()
    plain = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    for name in re.findall(r"\btopkd_\w+", plain):
        family = family_of(name, types)
        if family is None:
            wrong(f"{where}: the daemon serves no {name}")
        else:
            families.add(family)
    for name, matchers in re.findall(r"\b(topkd_\w+)\{([^}]*)\}", expression):
        if name not in labels:
            continue # a family without series on the CPU device
        for label, value in re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"', matchers):
            if label in ADDED_LABELS:
                continue
            if label not in labels[name]:
                wrong(f"{where}: {name} has no label {label}")
            elif "$" not in value and label not in ("device", "bucket", "variant", "le", "version"):
                for word in value.split("|"):
                    if word not in labels[name][label]:
                        wrong(f"{where}: {name} has no {label}=\"{word}\"")
    return families


def rule_expressions(path):
    """Every expr: of a rule file, folded lines joined; promtool has checked that it is a rule file."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    name = "?"
    for i, line in enumerate(lines):
        if match := re.match(r"\s*- alert: (\w+)", line):
            name = match.group(1)
        if match := re.match(r"(\s*)expr: (.*)", line):
            text = match.group(2)
            if text == ">-":
                text = ""
                for following in lines[i + 1:]:
                    if len(following) - len(following.lstrip()) <= len(match.group(1)):
                        break
                    text += " " + following.strip()
            yield f"alert {name}", text


def check_layout(panels):
    numbers = [panel["id"] for panel in panels]
    if len(set(numbers)) != len(numbers):
        wrong("dashboard: two panels have the same id")
    taken = {}
    for panel in panels:
        place = panel["gridPos"]
        if place["x"] + place["w"] > 24:
            wrong(f"dashboard: {panel['title']} is wider than the page")
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                other = taken.setdefault((x, y), panel["title"])
                if other != panel["title"]:
                    wrong(f"dashboard: {panel['title']} lies over {other}")


def dashboard_expressions(path):
    with open(path, encoding="utf-8") as file:
        board = json.load(file)
    check_layout(board["panels"])
    variables = {"__rate_interval": "5m", "__range": "1h"}
    for variable in board["templating"]["list"]:
        variables[variable["name"]] = "x"
        for query in re.findall(r"label_values\((.*), \w+\)$", variable.get("definition", "")):
            yield f"variable {variable['name']}", query, variables
    for panel in board["panels"]:
        if panel["type"] != "row" and not panel["targets"]:
            wrong(f"dashboard: {panel['title']} shows nothing")
        for target in panel.get("targets", []):
            yield f"panel {panel['title']}", target["expr"], variables
    for note in board["annotations"]["list"]:
        yield f"annotation {note['name']}", note["expr"], variables


def main():
    monitoring, binaries = sys.argv[1:]
    rules = f"{monitoring}/alerts.yaml"
    promtool("check", "rules", rules)
    promtool("test", "rules", f"{monitoring}/alerts_test.yaml")
    promtool("check", "config", f"{monitoring}/prometheus.yaml")
    with open(f"{monitoring}/alerts_test.yaml", encoding="utf-8") as file:
        tested = file.read()
    with tempfile.TemporaryDirectory(prefix="topkd-mon-", dir="/tmp") as folder:
        types, labels = series_of(served(folder, binaries))
        families = set()
        for where, expression in rule_expressions(rules):
            families |= check_expression(where, expression, types, labels)
            name = where.split()[1]
            for test in ("fires", "stays quiet"):
                if f"name: {name} {test}\n" not in tested:
                    wrong(f"{where}: alerts_test.yaml has no test \"{name} {test}\"")
        recorded = "groups:\n- name: dashboard\n  rules:\n"
        for where, expression, variables in dashboard_expressions(f"{monitoring}/dashboard.json"):
            families |= check_expression(where, expression, types, labels)
            filled = re.sub(r"\$(\w+)", lambda m: variables.get(m.group(1), "$" + m.group(1)), expression)
            if "$" in filled:
                wrong(f"{where}: a variable that the dashboard does not define: {filled}")
            recorded += f"  - record: x\n    expr: {json.dumps(filled)}\n    labels: {{where: {json.dumps(where + filled)}}}\n"
        with open(f"{folder}/dashboard.yaml", "w", encoding="utf-8") as file:
            file.write(recorded)
        promtool("check", "rules", f"{folder}/dashboard.yaml")
    for text in errors:
        print(f"monitoring_test: {text}", file=sys.stderr)
    if not errors:
        print(f"monitoring_test: {len(families)} of {len(types)} families in use, all of them served")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
