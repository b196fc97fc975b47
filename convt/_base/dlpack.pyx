# cython: language_level=3
"""DLPack import of all dtypes that convt supports.

This module reads DLPack capsules itself, because NumPy's ``from_dlpack`` rejects the bfloat16 arrays of PyTorch and JAX. The
resulting array shares the producer's memory and keeps it alive.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New, PyCapsule_SetName
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

import ml_dtypes
import numpy as np

from . import dtypes

cimport numpy as cnp

cnp.import_array()

CPU = 1  # kDLCPU

MAX_VERSION = (1, 0)  # of the capsules that `from_capsule` reads

# Structures of DLPack's C interface: the unversioned capsule, which every producer supports, and the capsule of version 1.
cdef struct DLDevice:
    int32_t device_type
    int32_t device_id

cdef struct DLDataType:
    uint8_t code
    uint8_t bits
    uint16_t lanes

cdef struct DLTensor:
    void *data
    DLDevice device
    int32_t ndim
    DLDataType dtype
    int64_t *shape
    int64_t *strides
    uint64_t byte_offset

cdef struct DLManagedTensor:
    DLTensor dl_tensor
    void *manager_ctx
    void (*deleter)(DLManagedTensor *) noexcept

cdef struct DLPackVersion:
    uint32_t major
    uint32_t minor

cdef struct DLManagedTensorVersioned:
    DLPackVersion version
    void *manager_ctx
    void (*deleter)(DLManagedTensorVersioned *) noexcept
    uint64_t flags
    DLTensor dl_tensor

cdef enum:
    READ_ONLY_OR_COPIED = 3  # flags of a versioned capsule; what is written to a copy would not reach the producer's array

_DTYPES = {(each.dlpack, 8 * each.dtype.itemsize): each.dtype for each in dtypes.ALL}


cdef void _release(object capsule) noexcept:
    cdef DLManagedTensor *managed = <DLManagedTensor *>PyCapsule_GetPointer(capsule, b"convt_dltensor")
    if managed != NULL and managed.deleter != NULL:
        managed.deleter(managed)


cdef void _release_versioned(object capsule) noexcept:
    cdef DLManagedTensorVersioned *managed = <DLManagedTensorVersioned *>PyCapsule_GetPointer(capsule, b"convt_dltensor")
    if managed != NULL and managed.deleter != NULL:
        managed.deleter(managed)


def from_capsule(capsule, bint writeable=False):
    """Return a NumPy array that shares the memory of a DLPack capsule. Raise TypeError for types without a NumPy dtype.

    The array is read-only unless the capsule says that it may be written. A capsule without a version cannot say this, and
    JAX and TensorFlow make such capsules of immutable arrays. ``writeable`` is the caller's knowledge of these capsules.
    """
    cdef DLManagedTensorVersioned *versioned = NULL
    cdef DLManagedTensor *managed = NULL
    cdef DLTensor *tensor
    if PyCapsule_IsValid(capsule, b"dltensor_versioned"):
        versioned = <DLManagedTensorVersioned *>PyCapsule_GetPointer(capsule, b"dltensor_versioned")
        if versioned.version.major != 1:
            raise TypeError(f"DLPack version {versioned.version.major}.{versioned.version.minor}, wanted 1")
        tensor, writeable = &versioned.dl_tensor, not versioned.flags & READ_ONLY_OR_COPIED
    elif PyCapsule_IsValid(capsule, b"dltensor"):
        managed = <DLManagedTensor *>PyCapsule_GetPointer(capsule, b"dltensor")
        tensor = &managed.dl_tensor
    else:
        raise TypeError("not a fresh DLPack capsule")
    cdef int i
    if tensor.device.device_type != CPU:
        raise TypeError(f"device type {tensor.device.device_type}, wanted CPU memory")
    dtype = _DTYPES.get((tensor.dtype.code, tensor.dtype.bits))
    if dtype is None or tensor.dtype.lanes != 1:
        raise TypeError(f"DLPack type code {tensor.dtype.code} of {tensor.dtype.bits} bits has no NumPy dtype")
    shape = tuple([tensor.shape[i] for i in range(tensor.ndim)])
    strides = None
    if tensor.strides != NULL:
        strides = tuple([tensor.strides[i] * dtype.itemsize for i in range(tensor.ndim)])
    # The renamed capsule no longer owns the tensor. A new capsule owns it and releases it with the array.
    if versioned != NULL:
        PyCapsule_SetName(capsule, b"used_dltensor_versioned")
        owner = PyCapsule_New(versioned, b"convt_dltensor", _release_versioned)
    else:
        PyCapsule_SetName(capsule, b"used_dltensor")
        owner = PyCapsule_New(managed, b"convt_dltensor", _release)
    if 0 in shape:
        return np.empty(shape, dtype)
    cdef size_t address = <size_t>tensor.data + tensor.byte_offset
    holder = _Memory(address, not writeable, shape, strides, dtype, owner)
    return np.asarray(holder).view(dtype)


class _Memory:
    """An object with ``__array_interface__`` for an address; the interface describes dtypes of ml_dtypes as unsigned integers."""

    def __init__(self, address, read_only, shape, strides, dtype, owner):
        typestr = dtype.str if dtype.isbuiltin == 1 else f"<u{dtype.itemsize}"
        self.__array_interface__ = {
            "version": 3, "data": (address, read_only), "shape": shape, "strides": strides, "typestr": typestr,
        }
        self.owner = owner
