"""NumPy judges the .npy reader and writer: npy_numpy.py NPY_COPY.

Arrays that NumPy wrote must be read as they are and come back equal; arrays that are not accepted
must be refused, and the NumPy call that the refusal advises must make a file that is accepted.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

COPY = sys.argv[1]
FOLDER = tempfile.TemporaryDirectory()
SOURCE = Path(FOLDER.name) / "in.npy"
RESULT = Path(FOLDER.name) / "out.npy"


def save(array, version):
    with open(SOURCE, "wb") as file:
        np.lib.format.write_array(file, array, version=version)


def copy():
    done = subprocess.run([COPY, SOURCE, RESULT], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), f"exit code {done.returncode}: {done.stderr}"
    return done.returncode == 0, done.stdout.strip()


def check_accepted(array, version):
    save(array, version)
    accepted, text = copy()
    assert accepted, f"{array.dtype} {array.shape} version {version}: {text}"
    rows = array.shape[0] if array.ndim == 2 else 1
    kind = f"{array.dtype.kind}{array.dtype.itemsize}"
    assert text == f"{kind} {array.ndim} {rows} {array.shape[-1]}", text
    back = np.load(RESULT)
    assert back.dtype == array.dtype and back.shape == array.shape and back.flags.c_contiguous
    assert back.tobytes() == array.tobytes(), "the copy's bytes differ"


def check_refused(array, word):
    """Refused with `word` in the text; then follows the text's advice."""
    for version in ((1, 0), (2, 0), (3, 0)):
        save(array, version)
        accepted, text = copy()
        assert not accepted, f"{array.dtype} {array.shape} was accepted: {text}"
        assert word in text, f"no '{word}' in: {text}"
    advice = re.search(r"a = np\.load\(FILE\); np\.save\(FILE, (.*)\)$", text)
    if advice is None:
        assert "empty" in text, f"no advice in: {text}"
        return
    loaded = np.load(SOURCE)
    expression = advice.group(1).replace("FIELD", (loaded.dtype.names or ("",))[0])
    np.save(SOURCE, eval(expression, {"np": np, "a": loaded}))  # the text under test
    accepted, text = copy()
    assert accepted, f"the advice {expression} did not help: {text}"


def main():
    random = np.random.default_rng(1)
    for version in ((1, 0), (2, 0), (3, 0)):
        for shape in ((1,), (7,), (1, 1), (3, 5), (64, 1000), (1000, 1)):
            check_accepted(random.standard_normal(shape, dtype=np.float32), version)
            check_accepted(random.standard_normal(shape).astype("<f2"), version)
            check_accepted(random.integers(-9, 9, shape, dtype=np.int32), version)
    special = np.array([[np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45]], dtype="<f4")
    check_accepted(special, (1, 0))

    matrix = random.standard_normal((4, 6))
    check_refused(matrix, "'<f8'")
    check_refused(matrix.astype(">f2"), "big-endian")
    check_refused(matrix.astype(">f4"), "big-endian")
    check_refused(matrix.astype("<c8").real.astype(">f8"), "big-endian")
    check_refused(np.arange(5), "'<i8'")
    check_refused(np.arange(5, dtype=">i4"), "big-endian")
    check_refused(np.arange(5, dtype=np.uint8), "'|u1'")
    check_refused(matrix > 0, "'|b1'")
    check_refused(np.asfortranarray(matrix.astype("<f4")), "Fortran")
    check_refused(np.zeros(3, dtype=[("score", "<f4"), ("id", "<i4")]), "fields")
    check_refused(np.float32(3), "()")
    check_refused(np.zeros((2, 3, 4), np.float32), "(2, 3, 4)")
    check_refused(np.zeros((0, 3), np.float32), "empty")
    check_refused(np.zeros((3, 0), np.float32), "empty")
    print("NumPy agrees with reader, writer and advice")


main()
