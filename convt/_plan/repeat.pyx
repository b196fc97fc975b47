# cython: language_level=3
"""The fast path of repeated calls: it recognises a call like an earlier one and skips its checks.

The objects that repeated calls need are kept in caches (see convt._plan.keep). Each object has its bytes and its last use.
"""

import gc
import math

cimport cython
from libc.stdint cimport int64_t
from libc.string cimport memcpy

cimport numpy as cnp

from convt._run.addition cimport Addition
from convt._core cimport PackedFilter, NativePlan, invalidate_known_calls, isa_in_use
from convt._run.kernels cimport convt_isa
from convt._run.memory cimport Table, empty
from convt.algorithms.packing cimport PackRecipe

cnp.import_array()

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *bytes)
    void PyErr_Clear()

cdef extern from *:
    """
    /* Returns a new reference to the value of a key, or to None, because without a GIL another thread may remove the entry. */
    static PyObject *convt_find(PyObject *dict, PyObject *key)
    {
        PyObject *found = NULL;
    #ifdef Py_GIL_DISABLED
        PyDict_GetItemRef(dict, key, &found);
    #else
        found = PyDict_GetItemWithError(dict, key);
        Py_XINCREF(found);
    #endif
        if (!found && !PyErr_Occurred()) {
            found = Py_None;
            Py_INCREF(found);
        }
        return found;
    }
    /* Threads may note a use of one object at the same time; either number is correct. */
    #define convt_load(p) __atomic_load_n(p, __ATOMIC_RELAXED)
    #define convt_store(p, value) __atomic_store_n(p, value, __ATOMIC_RELAXED)
    """
    object convt_find(dict, object)
    int64_t convt_load(int64_t *p) noexcept nogil
    void convt_store(int64_t *p, int64_t value) noexcept nogil

cdef enum:
    SIGNATURE_BYTES = 2048

cdef struct Signature:
    char bytes[SIGNATURE_BYTES]
    Py_ssize_t length


cdef inline bint _add(Signature *s, char kind, const void *bytes, Py_ssize_t count) noexcept:
    """Append a kind and its bytes to a signature. Return False if there is no room."""
    if s.length + 1 + count > SIGNATURE_BYTES:
        return False
    s.bytes[s.length] = kind
    if count:  # `bytes` may be NULL if count is 0
        memcpy(s.bytes + s.length + 1, bytes, count)
    s.length += 1 + count
    return True


cdef bint _add_array(Signature *s, array) noexcept:
    """Append type, shape and strides of an array, or None. Return False for other objects and subclasses, or without room."""
    if array is None:
        return _add(s, b"n", NULL, 0)
    if type(array) is not cnp.ndarray:
        return False
    cdef int64_t head[2]
    head[0], head[1] = cnp.PyArray_TYPE(array), cnp.PyArray_NDIM(array)
    cdef Py_ssize_t bytes = head[1] * sizeof(cnp.npy_intp)
    return _add(s, b"a", head, sizeof(head)) and _add(s, b"d", cnp.PyArray_DIMS(array), bytes) and _add(
        s, b"s", cnp.PyArray_STRIDES(array), bytes)


cdef bint _add_value(Signature *s, value):
    """Append an attribute: None, an int, a float, a string, or a tuple or list of these.

    Return False for other types and for subclasses, because values of different types may compare equal (1, True and 1.0).
    """
    cdef int overflow = 0
    cdef int64_t i
    cdef double f
    cdef Py_ssize_t length
    cdef const char *text
    if value is None:
        return _add(s, b"n", NULL, 0)
    if type(value) is int:
        i = PyLong_AsLongLongAndOverflow(value, &overflow)
        return not overflow and _add(s, b"i", &i, sizeof(i))
    if type(value) is str:
        text = PyUnicode_AsUTF8AndSize(value, &length)
        if text == NULL:  # half of a surrogate pair
            PyErr_Clear()
            return False
        return _add(s, b"u", &length, sizeof(length)) and _add(s, b"c", text, length)
    if type(value) is tuple or type(value) is list:
        i = len(value)
        if not _add(s, b"t", &i, sizeof(i)):
            return False
        for item in value:
            if not _add_value(s, item):
                return False
        return True
    if type(value) is float:
        f = value
        return _add(s, b"f", &f, sizeof(f))
    return False


cpdef bint are_axes(tuple values, Py_ssize_t rank):
    """Check whether values are tuples of ``rank`` integers of Python's own type, for which True and 1.0 are none."""
    for value in values:
        if type(value) is not tuple or len(<tuple>value) != rank:
            return False
        for each in <tuple>value:
            if type(each) is not int:
                return False
    return True


cpdef bytes signature(data, int threads, bint adds=False, filter=None, bias=None, str dialect=None, values=None):
    """Return all properties of a call except the values of its arrays, as bytes, or None for a call without a signature.

    ``adds`` says whether the call adds an array to the output. A one-shot call has a filter, a bias or None, and the tuple
    ``values`` of its `api.Keywords`; the call of an operator has none of them. Calls with other arrays than NumPy's, or with
    values of unknown types, have no signature.
    """
    cdef Signature s
    cdef const convt_isa *isa = isa_in_use()
    s.length = 0
    _add(&s, b"+" if adds else b"p", &threads, sizeof(threads))
    if data is None or not _add_array(&s, data):
        return None
    if values is not None:
        _add(&s, b"p", &isa, sizeof(isa))
        if filter is None or not (_add_array(&s, filter) and _add_array(&s, bias) and _add_value(&s, dialect)):
            return None
        for value in <tuple>values:
            if not _add_value(&s, value):
                return None
    return s.bytes[:s.length]


cdef void _address_range(array, char **low, char **high) noexcept:
    """Compute the address range of an array: its first byte, and one past its last byte."""
    cdef int ax
    cdef Py_ssize_t step
    low[0] = high[0] = <char *>cnp.PyArray_DATA(array)
    for ax in range(cnp.PyArray_NDIM(array)):
        step = cnp.PyArray_STRIDES(array)[ax] * (cnp.PyArray_DIMS(array)[ax] - 1)
        low[0] += min(step, 0)
        high[0] += max(step, 0)
    high[0] += cnp.PyArray_ITEMSIZE(array)


cdef bint _disjoint(a, b) noexcept:
    """Check that the address ranges of two non-empty arrays do not overlap."""
    cdef char *low
    cdef char *high
    cdef char *other_low
    cdef char *other_high
    _address_range(a, &low, &high)
    _address_range(b, &other_low, &other_high)
    return high <= other_low or other_high <= low


cdef int64_t _uses = 0


cdef int64_t next_use() noexcept nogil:
    """Return a new number of a use; later uses have higher numbers."""
    cdef int64_t now = convt_load(&_uses) + 1
    convt_store(&_uses, now)
    return now


cdef class Kept:
    """An object in a cache: its bytes, its keys, and the number of its last use."""
    def __cinit__(self, *args, **kwargs):
        self.keys, self.last_use = [], next_use()

    def __init__(self, Py_ssize_t bytes):
        self.bytes = bytes

    @property
    def used(self):
        return convt_load(&self.last_use)

    def touch(self):
        """Note a use."""
        convt_store(&self.last_use, next_use())


cdef class Form(Kept):
    """A form of an operator's packed weights: its key, its recipe, and the packed weights while they are kept.

    ``finite`` tells whether all weights are finite; it is None until they are packed.
    """
    def __init__(self, tuple key, recipe):
        self.key, self.recipe = key, recipe

    @property
    def nbytes(self):
        """Bytes of the packed weights, 0 if they are not kept."""
        packed = self.weights()
        return 0 if packed is None else packed.nbytes

    cpdef weights(self):
        """Return a new reference to the packed weights, or None if they are not kept."""
        with cython.critical_section(self):
            packed = self.packed
        return packed

    cdef use(self):
        """Return the packed weights or None, and note a use."""
        convt_store(&self.last_use, next_use())
        return self.weights()

    def take(self):
        """Return the packed weights or None, and note a use."""
        return self.use()

    def keep(self, packed):
        """Keep packed weights; None drops them."""
        if packed is None:
            invalidate_known_calls()
        else:
            self.finite = packed.finite
            convt_store(&self.last_use, next_use())
        with cython.critical_section(self):
            self.packed = packed


cdef enum:
    OBJECT_BYTES = 64  # approximate bytes of a small object
    FOREIGN_BYTES = 1 << 14  # approximate bytes of a oneDNN plan

cdef Py_ssize_t bytes_of(held) except -1:
    """Return the approximate bytes of a plan with its tables and inner plans. Each small object counts OBJECT_BYTES."""
    cdef Py_ssize_t total = OBJECT_BYTES
    if type(held) is cnp.ndarray:
        total += cnp.PyArray_NBYTES(held)
    elif type(held) is Table:
        total += OBJECT_BYTES + cnp.PyArray_NBYTES((<Table>held).array)
    elif type(held) is list:
        for each in <list>held:
            total += bytes_of(each)
    elif type(held) is tuple:
        total += 8 * len(<tuple>held)
    elif isinstance(held, NativePlan):
        for each in gc.get_referents(held):
            total += bytes_of(each)
    return total


cdef class PreparedCall(Kept):
    """A plan and the form of its weights, for repeated calls, whose arrays are checked with a few comparisons.

    dtype, shape and strides (bytes) are those of a contiguous output. ``fill`` is a function of the bias that returns the
    values of outputs without products; it is None if there are no such outputs. With an ``addition``, each call has an array
    that is added to the output, and the plan has no activation. A one-shot call brings its weights, which it packs beforehand
    or on the fly.
    """
    def __init__(
        self, plan, Form form, dtype, tuple shape, tuple strides, fill, bint as_chosen=True, Addition addition=None
    ):
        self.plan, self.form, self.dtype, self.shape, self.strides, self.fill = plan, form, dtype, shape, strides, fill
        self.addition, self.size = addition, math.prod(shape)
        self.as_chosen, self.supports_nonfinite = as_chosen, form.finite is False
        self.native = plan if isinstance(plan, NativePlan) else None
        self.bytes = FOREIGN_BYTES if self.native is None else bytes_of(plan)

    cdef void touch_all(self) noexcept nogil:
        """Note a use of the plan and of its form."""
        convt_store(&self.last_use, next_use())
        convt_store(&self.form.last_use, next_use())

    cpdef bint suits(self):
        """Check that the plan supports the weights. True if it is not yet known whether they are finite."""
        return self.supports_nonfinite or self.form.finite is not False

    cpdef PreparedCall changed(self, Form form, fill, Addition addition):
        """Return a call of the same plan with other weights or another addition."""
        return PreparedCall(self.plan, form, self.dtype, self.shape, self.strides, fill, self.as_chosen, addition)

    cdef bint matches_input(self, array):
        """Check dtype and alignment of an input array, whose shape and strides are known to match."""
        return <object>cnp.PyArray_DESCR(array) is self.dtype and cnp.PyArray_ISALIGNED(array)

    cdef bint matches_output(self, array):
        """Check that an array has the output's dtype, shape and strides and is aligned."""
        cdef int ax, nd = <int>len(self.shape)
        if type(array) is not cnp.ndarray or cnp.PyArray_NDIM(array) != nd:
            return False
        for ax in range(nd):
            if cnp.PyArray_DIMS(array)[ax] != <cnp.npy_intp>self.shape[ax] or (
                    cnp.PyArray_STRIDES(array)[ax] != <cnp.npy_intp>self.strides[ax]):
                return False
        return self.matches_input(array)

    cdef bint matches_call(self, data, out, add):
        """Check that data, out and the array to add match the plan. The shape and strides of ``data`` are known to match."""
        if not self.matches_input(data) or (add is not None and not self.matches_output(add)):
            return False
        return out is None or (
            self.matches_output(out) and cnp.PyArray_ISWRITEABLE(out) and _disjoint(out, data)
            and (add is None or _disjoint(out, add)))

    cdef bint matches_weights(self, filter, bias, out):
        """Check the weights of a one-shot call, whose shapes and strides are known to match."""
        return self.matches_input(filter) and (bias is None or self.matches_input(bias)) and (
            out is None or (_disjoint(out, filter) and (bias is None or _disjoint(out, bias))))

    cdef weights(self, filter, bias, int threads):
        """Return the packed weights: those that are kept, or without a filter None; those of a one-shot call if finite."""
        if filter is None:
            return self.form.use()
        recipe = self.form.recipe
        cdef bint on_the_fly
        if isinstance(recipe, PackRecipe):
            on_the_fly = self.native is not None and self.native.packing_workspace > 0
            packed = (<PackRecipe>recipe).pack(filter, bias, threads, False, on_the_fly)
        else:
            packed = recipe.pack(filter, bias, threads)
        return packed if packed.finite else None

    cdef compute(self, data, out, packed, bias, int threads, add):
        """Run the plan and return the output, or None if its algorithm does not support the values of the data."""
        result = empty(self.shape, self.dtype) if out is None else out
        fill = None if self.fill is None else self.fill(bias)
        if self.native is not None:
            done = self.native.compute(
                <char *>cnp.PyArray_DATA(data), <char *>cnp.PyArray_DATA(result), packed, threads, result, fill)
        else:
            done = self.plan.run(data, result, packed, threads)
        if done is False:
            return None
        if add is not None:
            self.add(<char *>cnp.PyArray_DATA(result), <const char *>cnp.PyArray_DATA(add), threads)
        return result

    cdef void add(self, char *out, const char *add, int threads) noexcept nogil:
        """Add contiguous values to a contiguous output, and apply the activation."""
        self.addition.compute(out, add, self.size, threads)


def repeat(dict calls, data, out, int threads, add=None, filter=None, bias=None, str dialect=None, values=None):
    """Return the output of a call like an earlier one, or the signature of a call that needs all checks.

    ``calls`` maps signatures to `PreparedCall` objects. The signature is None for a call without one. A call needs all checks
    if there is none like it, if its arrays overlap or are not aligned, if weights that an operator has dropped have to be packed
    again, or if the algorithm does not support the values.
    """
    cdef bytes key = signature(data, threads, add is not None, filter, bias, dialect, values)
    found = convt_find(calls, key)
    if found is None:
        return key
    cdef PreparedCall call = <PreparedCall>found
    if not (call.matches_call(data, out, add) and (filter is None or call.matches_weights(filter, bias, out))):
        return key
    packed = call.weights(filter, bias, threads)
    if packed is None:
        return key
    convt_store(&call.last_use, next_use())
    result = call.compute(data, out, packed, bias, threads, add)
    return key if result is None else result
