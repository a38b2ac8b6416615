"""libtopkd for the scripts of this folder: its structures, and calls that end the script when they
fail. The library's path is the first argument of the script.

The structures are those of the Python package, whose tests compare them with the headers.
"""
import ctypes as c
import importlib.util
import sys
from pathlib import Path

_path = Path(__file__).resolve().parents[3] / "client/python/src/topkd/_abi.py"
_spec = importlib.util.spec_from_file_location("topkd_abi", _path)
_abi = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_abi)

Request = _abi.SelectRequest
Options = _abi.ClientOptions
LaneOptions = _abi.LaneOptions

lib = c.CDLL(sys.argv[1])
lib.topkd_detail.restype = c.c_char_p


def check(status):
    if status != 0:
        sys.exit(f"FAIL status {status}: {lib.topkd_detail().decode()}")


def register(client, tensor, access):
    region = c.c_void_p()
    check(lib.topkd_region_register_cuda(client, c.c_void_p(tensor.data_ptr()),
                                         c.c_uint64(tensor.numel() * 4), c.c_int(access),
                                         c.byref(region)))
    return region
