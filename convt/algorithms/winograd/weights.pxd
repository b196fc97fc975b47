# Packed weights of `winograd` (weights.pyx).

from libc.stdint cimport int64_t

from convt.algorithms.packing cimport PackClass, PanelRecipe


cdef class WinogradRecipe(PanelRecipe):
    cdef object transforms

    cdef set_transform_tables(self, PackClass *c, windows, widths)
    cdef bint transform(self, PackClass *c, int64_t n, int64_t w, int64_t low, int64_t high, char *src, char *dst,
                        int64_t out_row, int64_t at_row, char *stage) noexcept nogil
    cdef bint pack_all_points(self, PackClass *c, int64_t n, int64_t first, int64_t depth, char *src, char *dst,
                              char *stage) noexcept nogil
    cdef bint pack_one_point(self, PackClass *c, int64_t n, int64_t point, int64_t first, int64_t depth, char *src,
                             char *dst) noexcept nogil
