# Inline helpers of all loops: positions on axes, blocks, rows that are divided evenly, and rows of one value.

from libc.stdint cimport int64_t

from convt._run.kernels cimport convt_kernels, convt_quotient


cdef inline int64_t take_index(int64_t *n, int64_t size) noexcept nogil:
    """Return n modulo the size of an axis, the position on the innermost axis. ``n`` becomes the index over the other axes."""
    cdef int64_t all = n[0]
    n[0] = convt_quotient(all, size)
    return all - n[0] * size


cdef inline void take_block(int64_t *n, int64_t size, int64_t block, int64_t blocks, int64_t *first,
                            int64_t *end) noexcept nogil:
    """Set the indices [first, end) of the block on the innermost axis of ``n``, which becomes the index over the other axes.

    The axis has ``size`` indices in ``blocks`` blocks of ``block``.
    """
    first[0] = take_index(n, blocks) * block
    end[0] = min(size, first[0] + block)


cdef struct Grid:
    # The tasks of a class: blocks of rows and of panels in all channel groups; the rows of a group vary fastest.
    int64_t rows, block, blocks, panels, panel_block, panel_blocks
    int64_t first_task, tasks


cdef inline int64_t open_grid(Grid *g, rows, panels, cut, int64_t groups, int64_t first_task) except -1:
    """Set the grid of a class that a common.Division cuts. Return the number of the task after its tasks."""
    g.rows, g.block, g.blocks = rows, cut.block, cut.blocks
    g.panels, g.panel_block, g.panel_blocks = panels, cut.panel_block, cut.panel_blocks
    g.first_task, g.tasks = first_task, groups * g.blocks * g.panel_blocks
    return first_task + g.tasks


cdef inline int64_t take_task(const Grid *g, int64_t task, int64_t *row, int64_t *rows, int64_t *panel,
                              int64_t *end) noexcept nogil:
    """Return the channel group of a task. Set its first row, its number of rows, its first panel and the end of its panels."""
    task -= g.first_task
    take_block(&task, g.rows, g.block, g.blocks, row, rows)
    rows[0] -= row[0]
    take_block(&task, g.panels, g.panel_block, g.panel_blocks, panel, end)
    return task


cdef inline void advance(int64_t *at, const int64_t *sizes, int nd, int64_t n, int64_t *image) noexcept nogil:
    """Advance a position by ``n`` along the last axis, at most to its end. At its end, the axis before it advances by one."""
    cdef int ax
    at[nd - 1] += n
    for ax in range(nd - 1, 0, -1):
        if at[ax] == sizes[ax]:
            at[ax] = 0
            at[ax - 1] += 1
    if at[0] == sizes[0]:
        at[0] = 0
        image[0] += 1


cdef inline void fill(const convt_kernels *k, char *to, int64_t n, double value) noexcept nogil:
    """Set ``n`` numbers of the type of accumulators."""
    cdef int64_t i
    if k.t_size == 8:
        for i in range(n):
            (<double *>to)[i] = value
    else:
        for i in range(n):
            (<float *>to)[i] = <float>value


cdef struct Cut:
    # Rows divided evenly into parts of whole M steps. Parts have `height` rows; the first `taller` have one M step more.
    int64_t rows, m_step, height, taller


cdef inline Cut cut_evenly(int64_t rows, int64_t parts, int64_t m_step) noexcept nogil:
    """Return the division of rows into ``parts`` parts of whole M steps."""
    cdef Cut c
    cdef int64_t m_steps = rows
    if m_step > 1:
        m_steps = convt_quotient(rows + m_step - 1, m_step)
    cdef int64_t each = m_steps
    if parts > 1:
        each = convt_quotient(m_steps, parts)
    c.rows, c.m_step, c.height, c.taller = rows, m_step, each * m_step, m_steps - each * parts
    return c


cdef inline int64_t cut_at(const Cut *c, int64_t n) noexcept nogil:
    """Return the first row of the n-th part, which is the end of the part before it."""
    return min(c.rows, n * c.height + min(n, c.taller) * c.m_step)


cdef inline bint is_inside(int64_t *box, int64_t *at, int64_t nd) noexcept nogil:
    """Check whether a position is inside a box, [low, high) per axis."""
    cdef int64_t ax
    for ax in range(nd):
        if at[ax] < box[2 * ax] or at[ax] >= box[2 * ax + 1]:
            return False
    return True


cdef inline int64_t ceil_quotient(int64_t n, int64_t step) noexcept nogil:
    """Return n divided by the step, rounded up."""
    if step == 1:
        return n
    return convt_quotient(n + step - 1, step) if n > 0 else -convt_quotient(-n, step)
