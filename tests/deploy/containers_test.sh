#!/usr/bin/env bash
# What is written for container engines is right by their own schemas, and by ours: the settings.
#
#   containers_test.sh ROOT BIN WORK
#
# Needs docker-compose (it carries the schema of compose files), kubectl (kustomize is part of it) and
# Python's kubernetes-validate (it carries the schemas of Kubernetes), which is installed into WORK.
set -euo pipefail
root=$1 bin=$2 work=$3
validator_version=1.37.0

fail() {
    echo "containers_test: $*" >&2
    exit 1
}

compose_files() {
    local compose=(docker-compose -f "$root/deploy/container/compose.yaml")
    "${compose[@]}" config --quiet || fail "compose.yaml"
    "${compose[@]}" -f "$root/deploy/container/compose.gpu.yaml" config >"$work/compose" ||
        fail "compose.gpu.yaml"
    # With GPUs nobody shares /dev/shm, and everyone who computes sees the same MPS.
    ! grep -q 'ipc: \(service\|shareable\|host\)' "$work/compose" || fail "compose.gpu.yaml shares /dev/shm"
    [[ $(grep -c 'CUDA_MPS_PIPE_DIRECTORY: /mps/pipe' "$work/compose") == 4 ]] ||
        fail "compose.gpu.yaml: not all four see MPS"
}

# Up to three times: what fails of it is most often a download.
install_validator() {
    local try
    python3 -m venv "$work/venv"
    for try in 1 2 3; do
        if "$work/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
            --retries 5 --timeout 60 "kubernetes-validate==$validator_version"; then
            return 0
        fi
        echo "containers_test: pip failed, try $try of 3" >&2
        sleep $((5 * try))
    done
    return 1
}

kubernetes() {
    local kinds
    install_validator || fail "kubernetes-validate $validator_version cannot be installed"
    kubectl kustomize "$root/deploy/kubernetes" >"$work/kustomized.yaml" ||
        fail "deploy/kubernetes is no kustomization"
    kinds=$(sed -n 's/^kind: //p' "$work/kustomized.yaml" | sort | xargs)
    [[ $kinds == 'ConfigMap DaemonSet Namespace' ]] || fail "deploy/kubernetes makes: $kinds"
    "$work/venv/bin/kubernetes-validate" --strict --quiet "$work/kustomized.yaml" \
        "$root/deploy/kubernetes/example-client.yaml" || fail "deploy/kubernetes: see above"
    ! grep -nE '^ *(hostIPC|hostPID|hostNetwork|privileged): true' "$work/kustomized.yaml" ||
        fail "the DaemonSet asks for more of the node than it needs"
    # The settings reached the pods under the name that they mount.
    name=$(sed -n '/^kind: ConfigMap/,/^---/s/^  name: //p' "$work/kustomized.yaml")
    grep -A1 'configMap:' "$work/kustomized.yaml" | grep -q "name: $name$" || fail "nobody mounts $name"
}

# One number for the user, everywhere.
user_number() {
    local file number
    number=$(sed -n 's/.*useradd --uid \([0-9]*\).*/\1/p' "$root/deploy/container/Containerfile")
    [[ -n $number ]] || fail "the Containerfile makes no user"
    for file in container/compose.yaml container/compose.gpu.yaml kubernetes/daemonset.yaml \
        kubernetes/example-client.yaml; do
        grep -q "$number" "$root/deploy/$file" || fail "$file does not run as $number"
    done
}

settings() {
    local file
    for file in container/topkd.yaml kubernetes/topkd.yaml; do
        "$bin/topkd" --check-config --config "$root/deploy/$file" || fail "$file"
    done
}

compose_files
kubernetes
user_number
settings
echo "containers_test: compose files, kustomization and settings are right"
