"""libtopkd for the scripts of this folder: its structures, and calls that end the script when they
fail. The library's path is the first argument of the script."""
import ctypes as c
import sys


class Tensor(c.Structure):
    _fields_ = [("region", c.c_void_p), ("offset_bytes", c.c_uint64), ("stride", c.c_int64)]


class Point(c.Structure):
    _fields_ = [("semaphore", c.c_void_p), ("value", c.c_uint64)]


class Request(c.Structure):
    _fields_ = [("scores", Tensor), ("rows", c.c_uint32), ("width", c.c_uint32), ("k", c.c_uint32),
                ("order", c.c_int), ("ties", c.c_int), ("deterministic", c.c_bool),
                ("lengths_mode", c.c_int), ("length_all", c.c_int32),
                ("lengths_host", c.c_void_p), ("lengths", Tensor), ("indices", Tensor),
                ("values", Tensor), ("want_values", c.c_bool), ("page_table", Tensor),
                ("page_table_width", c.c_uint32), ("page_size", c.c_uint32),
                ("row_offsets", Tensor), ("wait", Point), ("signal", Point),
                ("timeout_ms", c.c_uint32)]


class Options(c.Structure):
    _fields_ = [("url", c.c_char_p), ("device", c.c_char_p), ("name", c.c_char_p),
                ("timeout_ms", c.c_uint32), ("no_renew", c.c_bool)]


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
