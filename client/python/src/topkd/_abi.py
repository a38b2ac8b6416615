"""The C interface of libtopkd and libtopksel as ctypes declarations.

They mirror client/include/topkd.h and kernels/include/topk_select.h field by field. A wrong one
would corrupt memory, so tests/test_abi.py compiles a C program that prints the size and every
offset, and compares.
"""

from __future__ import annotations

import ctypes as c
from typing import ClassVar

ACCESS_READ, ACCESS_READ_WRITE = 1, 3
LENGTHS_FULL, LENGTHS_ALL, LENGTHS_HOST, LENGTHS_REGION = 0, 1, 2, 3
LENGTHS_HOST_MAX = 8192  # rows whose lengths fit into a message (topkd.h)
DEVICE_CPU, DEVICE_CUDA = 0, 1

ORDERS = {"any": 0, "index": 1, "value": 2}
TIES = {"any": 0, "lowest": 1}


class ClientOptions(c.Structure):
    _fields_: ClassVar = [
        ("url", c.c_char_p),
        ("device", c.c_char_p),
        ("name", c.c_char_p),
        ("timeout_ms", c.c_uint32),
        ("no_renew", c.c_bool),
    ]


class ClientInfo(c.Structure):
    _fields_: ClassVar = [
        ("device", c.c_char * 48),
        ("server_version", c.c_char * 64),
        ("device_kind", c.c_int),
        ("session", c.c_uint64),
        ("epoch", c.c_uint64),
        ("num_renewals", c.c_uint64),
        ("k_max", c.c_uint32),
        ("regions_max", c.c_uint32),
        ("outstanding_max", c.c_uint32),
        ("semaphores_max", c.c_uint32),
        ("rows_max", c.c_uint64),
        ("width_max", c.c_uint64),
        ("region_bytes_max", c.c_uint64),
        ("timeout_ms_max", c.c_uint32),
        ("arena_slots", c.c_uint32),
        ("arena_slot_bytes", c.c_uint64),
        ("dtypes", c.c_uint32),
    ]


class Allocation(c.Structure):
    _fields_: ClassVar = [
        ("base", c.c_void_p),
        ("size_bytes", c.c_uint64),
        ("id", c.c_uint64),
    ]


class TensorRef(c.Structure):
    """struct topkd_tensor."""

    _fields_: ClassVar = [
        ("region", c.c_void_p),
        ("offset_bytes", c.c_uint64),
        ("stride", c.c_int64),
    ]


class SemaphorePoint(c.Structure):
    _fields_: ClassVar = [("semaphore", c.c_void_p), ("value", c.c_uint64)]


class SelectRequest(c.Structure):
    _fields_: ClassVar = [
        ("scores", TensorRef),
        ("rows", c.c_uint32),
        ("width", c.c_uint32),
        ("k", c.c_uint32),
        ("order", c.c_int),
        ("ties", c.c_int),
        ("dtype", c.c_int),
        ("deterministic", c.c_bool),
        ("lengths_mode", c.c_int),
        ("length_all", c.c_int32),
        ("lengths_host", c.c_void_p),
        ("lengths", TensorRef),
        ("indices", TensorRef),
        ("values", TensorRef),
        ("want_values", c.c_bool),
        ("page_table", TensorRef),
        ("page_table_width", c.c_uint32),
        ("page_size", c.c_uint32),
        ("row_offsets", TensorRef),
        ("wait", SemaphorePoint),
        ("signal", SemaphorePoint),
        ("timeout_ms", c.c_uint32),
    ]


class SelectResult(c.Structure):
    """struct topkd_result."""

    _fields_: ClassVar = [
        ("rows", c.c_uint32),
        ("k", c.c_uint32),
        ("indices", c.c_void_p),
        ("index_stride", c.c_int64),
        ("values", c.c_void_p),
        ("value_stride", c.c_int64),
        ("bucket", c.c_uint32),
        ("num_retries", c.c_uint32),
        ("queued_ns", c.c_uint64),
        ("run_ns", c.c_uint64),
        ("lease", c.c_uint64),
    ]


class LaneOptions(c.Structure):
    _fields_: ClassVar = [
        ("live_rows", TensorRef),
        ("device_mailbox", c.c_bool),
        ("wait", c.c_int),
        ("poll_us", c.c_uint32),
    ]


class LaneInfo(c.Structure):
    _fields_: ClassVar = [
        ("is_served", c.c_bool),
        ("status", c.c_int),
        ("num_failed", c.c_uint64),
        ("num_renewals", c.c_uint64),
        ("wait", c.c_int),
        ("poll_us", c.c_uint32),
    ]


# ---- libtopksel ----------------------------------------------------------------------------------


class SelectorOptions(c.Structure):
    """struct topk_options."""

    _fields_: ClassVar = [("order", c.c_int), ("ties", c.c_int), ("dtype", c.c_int)]


class SelectorArgs(c.Structure):
    """struct topk_args."""

    _fields_: ClassVar = [
        ("scores", c.c_void_p),
        ("row_stride", c.c_int64),
        ("lengths", c.c_void_p),
        ("indices", c.c_void_p),
        ("index_stride", c.c_int64),
        ("values", c.c_void_p),
        ("value_stride", c.c_int64),
        ("page_table", c.c_void_p),
        ("page_table_stride", c.c_int64),
        ("row_offsets", c.c_void_p),
        ("routes", c.c_void_p),
        ("num_rows", c.c_int32),
        ("width", c.c_int32),
        ("length_all", c.c_int32),
        ("k", c.c_int32),
        ("page_table_width", c.c_int32),
        ("page_size_log2", c.c_uint32),
    ]


class CpuConfig(c.Structure):
    """struct topk_cpu_config."""

    _fields_: ClassVar = [("num_threads", c.c_uint32), ("isa", c.c_char_p)]


class SelectorDevice(c.Structure):
    """struct topk_device."""

    _fields_: ClassVar = [
        ("num_multiprocessors", c.c_int32),
        ("compute_major", c.c_int32),
        ("compute_minor", c.c_int32),
        ("shared_bytes_per_block", c.c_int32),
        ("shared_bytes_per_multiprocessor", c.c_int32),
        ("l2_bytes", c.c_int64),
    ]


class SelectorShape(c.Structure):
    """struct topk_shape."""

    _fields_: ClassVar = [
        ("k", c.c_int32),
        ("rows", c.c_int32),
        ("width", c.c_int32),
        ("alignment_bytes", c.c_int32),
        ("options", SelectorOptions),
    ]


class SelectorPlan(c.Structure):
    """struct topk_plan."""

    _fields_: ClassVar = [
        ("shape", SelectorShape),
        ("family", c.c_int),
        ("variant", c.c_int32),
        ("num_blocks", c.c_int32),
        ("cluster_blocks", c.c_int32),
        ("threads", c.c_int32),
        ("sample_stride", c.c_int32),
        ("tile_scores", c.c_int32),
        ("shared_bytes", c.c_int64),
        ("workspace_bytes", c.c_int64),
        ("parameters", c.c_int64 * 8),
    ]


# C name of each structure above, for the test.
STRUCTURES: dict[str, type[c.Structure]] = {
    "topkd_client_options": ClientOptions,
    "topkd_client_info": ClientInfo,
    "topkd_allocation": Allocation,
    "topkd_tensor": TensorRef,
    "topkd_semaphore_point": SemaphorePoint,
    "topkd_select_request": SelectRequest,
    "topkd_result": SelectResult,
    "topkd_lane_options": LaneOptions,
    "topkd_lane_info": LaneInfo,
    "topk_options": SelectorOptions,
    "topk_args": SelectorArgs,
    "topk_cpu_config": CpuConfig,
    "topk_device": SelectorDevice,
    "topk_shape": SelectorShape,
    "topk_plan": SelectorPlan,
}

_P, _U32, _U64, _INT, _TEXT = c.c_void_p, c.c_uint32, c.c_uint64, c.c_int, c.c_char_p

# name: (result, parameters)
CLIENT_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "topkd_strerror": (_TEXT, [_INT]),
    "topkd_strhint": (_TEXT, [_INT]),
    "topkd_status_name": (_TEXT, [_INT]),
    "topkd_detail": (_TEXT, []),
    "topkd_version": (_TEXT, []),
    "topkd_client_open": (_INT, [_P, _P]),
    "topkd_client_close": (None, [_P]),
    "topkd_client_info": (_INT, [_P, _P]),
    "topkd_client_fd": (_INT, [_P]),
    "topkd_client_wait": (_INT, [_P, _U32]),
    "topkd_ping": (_INT, [_P, _P]),
    "topkd_buffer_create": (_INT, [_P, _U64, _P]),
    "topkd_buffer_data": (_P, [_P]),
    "topkd_buffer_region": (_P, [_P]),
    "topkd_buffer_destroy": (None, [_P]),
    "topkd_buffer_copy": (_INT, [_P, _U64, _P, _U64, _P]),
    "topkd_cuda_allocation": (_INT, [_P, _P, _U64, _P]),
    "topkd_region_register_cuda": (_INT, [_P, _P, _U64, _INT, _P]),
    "topkd_region_unregister": (_INT, [_P]),
    "topkd_select": (_INT, [_P, _P, _P]),
    "topkd_result_release": (None, [_P, _P]),
    "topkd_select_start": (_INT, [_P, _P, _P, _P]),
    "topkd_select_stream_try": (_INT, [_P, _P, _P, _P]),
    "topkd_op_next": (_P, [_P]),
    "topkd_op_wait": (_INT, [_P, _U32]),
    "topkd_op_finish": (_INT, [_P, _P]),
    "topkd_lane_open": (_INT, [_P, _P, _P, _P]),
    "topkd_lane_enqueue": (_INT, [_P, _P]),
    "topkd_lane_check": (_INT, [_P]),
    "topkd_lane_info": (_INT, [_P, _P]),
    "topkd_lane_close": (None, [_P]),
}

SELECTOR_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "topk_strerror": (_TEXT, [_INT]),
    "topk_args_check": (_INT, [_P, _P, _P]),
    "topk_cpu_create": (_INT, [_P, _P, _P]),
    "topk_cpu_destroy": (None, [_P]),
    "topk_cpu_isa": (_TEXT, [_P]),
    "topk_cpu_num_threads": (_U32, [_P]),
    "topk_cpu_select": (_INT, [_P, _P, _P, _P, _P]),
    "topk_plan_make": (_INT, [_P, _P, _P, _P]),
    "topk_cuda_device": (_INT, [_INT, _P, _P]),
    "topk_cuda_load": (_INT, [_P, _P]),
    "topk_cuda_workspace_init": (_INT, [_P, _P, _P, _P]),
    "topk_cuda_enqueue": (_INT, [_P, _P, _P, _P, _P]),
}
