/* The contract between the loops of the algorithms and the micro-kernels.
 *
 * A kernel set (convt_kernels) serves one storage dtype on one unit of one instruction set. It has three element types: S in
 * user memory, E in packed panels, T in accumulators.
 *
 *   dtype      S        E                               T
 *   float32    float    float                           float
 *   float64    double   double                          double
 *   float16    f16      float                           float
 *   bfloat16   bf16     float                           float
 *   units that multiply bfloat16:  E = one to three bfloat16 per element (CONVT_ON_DOTS, CONVT_ON_AMX), T = float
 *
 * GEMM operands. A is `mr` rows of at most CONVT_KC elements E, `lda` elements apart. B is a panel of kc rows of nb elements E,
 * where nb is one or two vectors. Element (k, n) of B is at
 *
 *   k * nb + n                                  if kstep is 1
 *   ((k / 2) * nb + n) * 2 + k % 2              if kstep is 2 (dot products): rows interleaved in pairs, kc is even
 *   see body_matrix.h                           with AMX tiles: kstep is the depth of one AMX product
 *
 * Strides count elements, unless a comment says bytes, and may be negative. User memory needs only the alignment of its
 * elements. Panels and accumulators belong to convt and are aligned to 64 bytes. Kernels handle edges: they accept any m, n and
 * count, and read or write nothing beyond, except where a comment says that whole vectors are read or written. A pointer may be
 * NULL only where a comment says so. A comment "T", "S" or "E" beside a pointer is the type of its elements. CONVT_DEBUG builds
 * assert the preconditions given here.
 */
#ifndef CONVT_KERNELS_H
#define CONVT_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* CONVT_KC is the largest depth of a panel. CONVT_LDA is the distance in elements between packed rows of A for vector kernels:
 * the depth plus a cache line, so that rows at one depth fall into different sets of L1. */
#define CONVT_KC 256
#define CONVT_LDA (CONVT_KC + 16)

enum { CONVT_NONE, CONVT_CLIP, CONVT_LEAKY };

/* An activation act(x). Those above are applied to registers. The other codes are those of activations.h, applied to sums in
 * memory, which use neither a nor b, except ELU.
 *
 *   CLIP     min(max(x, a), b); relu is CLIP with a = 0
 *   LEAKY    x < 0 ? a * x : x
 *   ELU      x < 0 ? a * (exp(x) - 1) : x
 */
typedef struct {
    int code;
    double a, b;
} convt_act;

/* Deferred non-temporal stores of AMX tiles. An AMX tile kernel leaves its results in `sums`, a buffer of T that holds a
 * register tile and is aligned to 64 bytes. The next tile kernel stores them row by row while it multiplies. While left > 0:
 *
 *   rows[0][row_offset + c] = act(next_row[c]) for c < cols;  rows += 1;  next_row += cols;  left -= 1
 */
typedef struct {
    void *sums;            /* T */
    void *next_row;        /* T: the next row to store, `cols` columns */
    void *const *rows;     /* T: its destination is rows[0] + row_offset, aligned to vectors */
    ptrdiff_t row_offset;
    int cols, left;        /* cols: a multiple of vl; left: the number of rows not stored yet */
    const convt_act *act;
} convt_pending_stores;

enum { CONVT_F32, CONVT_F64, CONVT_F16, CONVT_BF16, CONVT_DTYPES };

/* One register tile: for m < mr and c < cols,
 *
 *   rows[m][row_offset + c] = act(init(m, c) + sum over k < kc of A(m, k) * B(k, c))     with init
 *   rows[m][row_offset + c] = act(rows[m][row_offset + c] + sum over k < kc of A(m, k) * B(k, c))    without init
 *
 * where init(m, c) = init[m * init_ld + c]. `init`, and `rows` without init, are read in whole vectors.
 *
 * If `more_tiles` > 0, the call computes that many further tiles of mr rows each, because at little depth a call takes longer
 * than a tile. Their rows of A, their `rows` and their rows of `init` follow those of the tile before; panels and init2 stay
 * the same. With AMX tiles `more_tiles` must be 0.
 */
typedef struct {
    int kc;                /* depth: at most CONVT_KC, a multiple of kstep, may be 0 */
    int nv;                /* vectors in a row of B: 1 to nr / vl; with a second panel (b2), 2 * nr / vl */
    const void *a, *b;     /* E: rows of A, and a panel of B */
    ptrdiff_t lda;         /* elements E between rows of A */
    const void *init;      /* T, or NULL: row m is at init + m * init_ld. init_ld = 0: every row adds the same one, the bias */
    ptrdiff_t init_ld;
    void *const *rows;     /* T, or narrow_dtype: row m goes to rows[m] + row_offset */
    ptrdiff_t row_offset;
    int cols;              /* columns stored: more than (nv - 1) * vl, at most nv * vl */
    const convt_act *act;  /* NONE, CLIP or LEAKY; `store` applies the others */
    int stream;            /* whole vectors may take non-temporal stores: every rows[m] + row_offset is aligned to a vector */
    int narrow_dtype;      /* CONVT_F16 or CONVT_BF16: accumulators are rounded to this dtype, which is that of `rows` (then
                            * init is not NULL); 0: rows are of T */
    /* A second panel for the same rows, if nv is 2 * nr / vl (mr is then at most `wide`, and cols = nv * vl): it has its own b,
     * init and row_offset. Not used otherwise. */
    const void *b2, *init2;
    ptrdiff_t row_offset2;
    /* Data that is read after this tile. After every `prefetch_interval` of depth a kernel prefetches the cache line at
     * `prefetch` (vector kernels: as many lines as they read of A meanwhile), and adds `prefetch_step` bytes to `prefetch`. Any
     * address is allowed. */
    const char *prefetch;
    ptrdiff_t prefetch_step;
    int more_tiles;
    convt_pending_stores *pending; /* AMX tiles: stores that the tile before left to this one, or NULL; else not used */
} convt_tile;

/* The operands of one term of a depthwise phase: offsets in elements from the start of each source and of its weights. */
typedef struct {
    ptrdiff_t in, w;
} convt_dw_term;

/* A phase of a depthwise run. It sums `terms` terms and writes output j to out + j * out_ld. If `masked`, the last term
 * counts only in the lanes of `mask`. Adjacent phases whose terms read the same pixels form a set: `set_size` of the first
 * phase is their number, that of the others is 0. */
typedef struct {
    const convt_dw_term *term;
    int terms, masked, set_size;
    int sliding;           /* 1 if term u reads the pixel before that of term u - 1 */
    /* The number of further outputs before the run (j = -1, -2, ...) and after it (j = n, n + 1, ...). The output at j = -i
     * sums all but the last i terms of the set's first phase (which may have one term more than this phase). The output at j =
     * n - 1 + i sums all but the first i terms of this phase. */
    int outputs_before, outputs_after;
    int64_t first, last;   /* with groups: the j of the whole run that this phase stores; other j are computed, but not
                            * stored */
    ptrdiff_t out;
} convt_dw_phase;

/* The most terms of a phase, and the most sources, of kernels that keep weights in registers. */
#define CONVT_DW_TERMS 3
#define CONVT_DW_SOURCES 3
#define CONVT_DW_ORDERED 2 /* the most terms, and sources, of kernels that store in memory order */
#define CONVT_DOTS 4 /* the most out-channels of a group of body_dots.h */
#define CONVT_DW_PRODUCTS 64 /* the most terms times input rows of a phase of `groups` */

/* The layout of channel groups of several channels in vectors, for body_groups.h and body_dots.h. In body_groups.h a vector of
 * outputs holds `groups_per_vector` groups, or a part of one group. */
typedef struct {
    int ci;                /* in-channels of a group, a multiple of groups_per_vector */
    int groups_per_vector; /* 1 or 2 */
    const int64_t *group_offset; /* for each vector, groups_per_vector offsets in elements from a pixel's first channel to a
                                  * group's first channel */
    const int64_t *first, *lanes; /* for each vector: its first out-channel, and the number of its out-channels */
    /* Elements between the weights of two vectors of outputs. A term has ci vectors of weights: for each group in turn, the
     * vectors of groups_per_vector in-channels after each other, with lanes as body_groups.h describes. */
    ptrdiff_t w_ld;
    /* 1: vectors run over in-channels instead (body_dots.h), and the in-channels of a group fill whole vectors. `lanes` is then
     * the number of out-channels of a group, at most CONVT_DOTS. A term has, for each vector of in-channels, one vector of
     * weights per out-channel. */
    int dots;
} convt_dw_groups;

/* One run of a depthwise convolution. For j < n, every phase p and c < cols:
 *
 *   out[j * out_ld + phase[p].out + c] = act(init[c] + sum over terms u of the phase and sources s of
 *                                            in[s][in_offset + term[u].in + j * in_ld + c] * w[s][term[u].w + c])
 *
 * Sources are input rows, and the channels of a channel group. Kernels write the phases side by side, so that every cache line
 * of the output is filled while it is in L1. They may write an output twice, with the same value.
 *
 * With `vector_offset`, inputs are permuted: column c of the vector that starts at column v reads element vector_offset[v] +
 * index[c] instead of c, and index[c] < `reach`.
 *
 * With `groups`, vectors v0 to v1 - 1 of the layout are computed, `cols` columns in all. Sources are input rows, starting at a
 * pixel's first channel; vector_offset, index, mask, masked, outputs_before and outputs_after are not used.
 */
typedef struct {
    int n, cols, phases, sources;
    int has_before, has_after; /* 1: the outputs_before of the phases, and their outputs_after, are computed too */
    int skip_outside;      /* 1: terms outside the input row are skipped (one phase, or groups) */
    int64_t low_pixel, high_pixel; /* term u of output j is inside the row if low_pixel <= j - u < high_pixel */
    const int64_t *vector_offset; /* or NULL: inputs are not permuted */
    const int32_t *index;  /* whole vectors, ascending in each; the last one repeats its last column */
    int can_overread;      /* 1: all `reach` elements from vector_offset[v] on can be read */
    ptrdiff_t vector_step; /* vector_offset[v + vl] - vector_offset[v], if all vectors have the same distance and indices;
                            * else 0 */
    const convt_dw_phase *phase;
    const void *const *in; /* T, one pointer per source */
    ptrdiff_t in_offset, in_ld;
    const void *const *w;  /* T, one pointer per source; rows are padded to whole vectors */
    const void *mask;      /* T, padded to whole vectors: the bits of a lane are all set or all clear */
    int mask_end;          /* the mask is clear from this column on */
    const void *init;      /* T, padded to whole vectors */
    void *out;             /* T */
    ptrdiff_t out_ld;
    int ordered;           /* 1: outputs of a row are contiguous and not in cache; kernels that can store them in memory
                            * order */
    ptrdiff_t out_prefetch; /* each store prefetches the line this many elements further; 0: no prefetch */
    const convt_act *act;  /* NONE, CLIP or LEAKY */
    int stream;            /* 1: non-temporal stores; vectors are cache lines, and outputs are whole and aligned vectors */
    const convt_dw_groups *groups; /* or NULL */
    int v0, v1;
    int64_t first_j;       /* the number of j of the run before j = 0 of this call */
    int inputs_uncached;   /* 1: inputs exceed L2, so kernels prefetch them where the hardware does not */
    /* T, or NULL: the input row that outputs of the next row read first. Kernels that compute blocks of j prefetch it into L2,
     * because the hardware does not foresee their reads. */
    const void *next_input_row;
    ptrdiff_t pair_distance; /* for kernels only: the distance of the two j whose accumulators share a vector */
} convt_dw;

/* Overlap-add along an axis of dilation 1. For j0 <= j < j1 and lane_lo <= l < lane_hi:
 *
 *   out(j, l) = act(init[l] + sum over u < terms of col[j - u][u * lanes + l])
 *
 * Rows of col outside [i0, i1) and columns from `cols` on add nothing. Lane l is phase l / channels and channel l % channels,
 * so lanes = stride * channels. out(j, l) is at out + (j - j0) * out_j + l / channels * out_x + l % channels * out_c.
 */
typedef struct {
    const void *col;       /* T: row i is at col + (i - i0) * ld */
    ptrdiff_t ld;
    int64_t i0, i1, j0, j1;
    int terms, lanes, cols, channels, lane_lo, lane_hi;
    const void *init;      /* T */
    void *out;             /* S: lane 0 of j0, even if lane_lo > 0 */
    ptrdiff_t out_j, out_x, out_c; /* elements between values of j, phases and channels */
    const convt_act *act;
} convt_overlap;

/* The GEMM before `overlap_pixels`, of few columns, with pixels in lanes. For m < mr and p < pixels:
 *
 *   out[m * ld + p] = (add ? out[m * ld + p] : 0) + sum over k < kc of a[m * CONVT_LDA + k] * src[p * cs + k * rs]
 *
 * Whole vectors of `out` are written, and read with `add`. Either cs or rs is 1. With rs = 1, pixels are transposed in
 * registers. With cs = 1, src[p + k * rs] is copied to copy[p + k * copy_ld], in whole vectors, and pixels of the row at `next`
 * are prefetched, a register tile further, then those of the row after it, a row after each `pause` k.
 */
typedef struct {
    int kc, pixels, add;   /* kc: at most CONVT_KC; with cs other than 1, at least 16 bytes of T */
    const void *src;       /* S */
    ptrdiff_t cs, rs, ld;
    const void *a;         /* T */
    void *out;             /* T */
    void *copy;            /* S, or NULL */
    ptrdiff_t copy_ld;
    const void *next;      /* S; may be invalid */
    ptrdiff_t next_rs;
    int pause;
} convt_pixel_gemm;

/* Overlap-add by gathers, in the order of outputs. For each vector of outputs, index holds 1 + terms vectors of indices i, one
 * after the other:
 *
 *   out = act(init[i of the first vector] + sum over t < terms of col[i of vector 1 + t])
 */
typedef struct {
    const void *col, *init; /* T */
    const int32_t *index;  /* whole vectors of indices, whatever `count` is */
    int64_t count;
    int terms;
    void *out;             /* S */
    const convt_act *act;
} convt_overlap_gather;

/* Winograd's input transform of a tile along two axes, for columns first <= c < last:
 *
 *   point (y, x) of the transform of in[y' * nx + x'][c], y' < ny, x' < nx
 *
 * is element c - first of the row at out + y * out_y + x * out_x. Whole vectors are written (wino_in), or whole steps of
 * depth of E (wino_rows).
 */
typedef struct {
    const void *const *in; /* T */
    void *out;             /* T for wino_in, E for wino_rows */
    ptrdiff_t out_y, out_x; /* in bytes */
    int first, last;
} convt_wino_in;

/* Winograd's output transform of a tile along two axes. For y < my, x < mx and c < cols:
 *
 *   rows[y * mx + x][c] = act(output (y, x) of the transform of in[y' * in_y + x' * in_x + c] + init[c])
 *
 * `in` and `init` are read in whole vectors. Adds 0 times every output before init to `check`, which so becomes NaN if an
 * output is not finite.
 */
typedef struct {
    const void *in;        /* T */
    ptrdiff_t in_y, in_x;
    const void *init;      /* T, whole vectors */
    void *const *rows;     /* T; the output of a NULL row is left out */
    int cols;
    int stream;            /* whole vectors take non-temporal stores: every row is aligned to a vector */
    const convt_act *act;  /* NONE, CLIP or LEAKY */
    void *check;           /* T, one vector */
} convt_wino_out;

/* Winograd's filter transform. For r < rows (points), i < n (in-channels) and c < cols (out-channels):
 *
 *   out[r * out_row + i * out_step + c] = sum over start[r] <= e < start[r + 1] of scale[e] * in[offset[e] + i * in_step + c]
 *
 * For AMX tiles these are the elements of a panel of out_step columns, in the layout of body_matrix.h, and a whole step of
 * depth is written: zeros from row n on.
 */
typedef struct {
    const void *in;        /* T */
    ptrdiff_t in_step;
    void *out;             /* E */
    ptrdiff_t out_row, out_step;
    int n, cols, rows;     /* cols: a multiple of vl; n: for AMX tiles, at most a step of depth */
    const int64_t *start, *offset;
    const void *scale;     /* T */
} convt_wino_filter;

/* Rows of outputs from rows of inputs, with pixels in vectors. For m < mr and i < n:
 *
 *   rows[m][i] = init[m] + sum over s < sources and t < shifts of in[s][i + shift[t]] * w[s][t * mr + m]
 *
 * Whole vectors of `in` are read, and whole vectors of `rows` are written.
 */
typedef struct {
    int n, sources, shifts;
    const void *const *in; /* T */
    const void *const *w;  /* T */
    const ptrdiff_t *shift;
    const void *init;      /* T */
    void *const *rows;     /* T */
} convt_rows;

/* Rows of outputs whose phases alternate. For r < rows and first <= e < last:
 *
 *   out[r][e * step] = act(bias[r] + row[(r * phases + e % phases) * ld + e / phases])
 */
typedef struct {
    int64_t phases;        /* at most CONVT_INTERLEAVED */
    int64_t first, last;
    int rows;
    const void *row;       /* T; whole vectors are read */
    ptrdiff_t ld;
    const void *bias;      /* T, or NULL */
    void *const *out;      /* S; a NULL row is left out */
    ptrdiff_t step;
    const convt_act *act;
    int stream;            /* 1: aligned vectors take non-temporal stores */
} convt_interleave;

/* The most phases of `interleave`. */
#define CONVT_INTERLEAVED 64

/* Results of `pack` for values that may be weights. */
#define CONVT_FITS_WEIGHTS 2

/* The number of kinds of an axis in `wino_out`: F(1, 1), F(2, 2), F(2, 3), F(3, 2), F(4, 3), F(5, 2), with 1, 3, 4, 4, 6, 6
 * points. */
#define CONVT_WINO_KINDS 6

/* Shorter rows of outputs that begin inside a cache line take ordinary stores, because few of their lines are whole. */
#define CONVT_STAGED_BYTES 512
#define CONVT_PIXEL_LANES 64 /* the most lanes of `overlap_pixels` */
#define CONVT_PIXEL_MR 8 /* the most columns of the GEMM of `pixel_gemm`, its `mr` */

#define CONVT_MOST_ROWS 32 /* the most rows of a register tile over all instruction sets */

/* A kernel set: register block sizes and functions for one dtype on one unit. */
typedef struct {
    int mr[3];             /* mr[nv]: most rows m_r of a register tile with nv vectors in a row of B */
    int wide;              /* most rows of a tile of two panels, which hides the latency of few rows; 0: no such tile */
    int nr, vl;            /* nr: columns of a panel; vl: lanes of a vector of T */
    int kstep;             /* depths are multiples of this: 1; 2 for dot products; the depth of an AMX product */
    int m_step;            /* rows of A that a tile reads at a time, even if it has fewer */
    int prefetch_interval; /* depth after which a tile prefetches from `prefetch` again */
    int lda;               /* elements between packed rows of A */
    int parts;             /* bfloat16 values into which an element is split for AMX tiles; 0 on vectors and dot products */
    int s_size, e_size, t_size;
    int direct_store;      /* 1 if S is T: tiles may be stored directly into user memory */
    int narrow_dtype;      /* CONVT_F16 or CONVT_BF16 if tiles may be stored into user memory with this narrow_dtype; else 0 */
    int reach;             /* number of adjacent elements from which `depthwise` permutes the lanes of a vector */

    void (*tile)(int mr, const convt_tile *tile);
    void (*flush_stores)(convt_pending_stores *pending); /* stores what the last tile left; NULL without AMX tiles */
    /* Copies bytes; whole cache lines of dst take non-temporal stores. Neither dst nor src need be aligned. */
    void (*copy_non_temporal)(void *dst, const void *src, size_t bytes);
    void (*fence)(void);   /* makes non-temporal stores visible to other threads */
    /* Functions to call before a thread's first tile of a call, and after its last tile; or NULL. */
    void (*begin_tiles)(void);
    void (*end_tiles)(void);
    void (*depthwise)(const convt_dw *run);
    void (*rows)(int mr, const convt_rows *run); /* mr: at most mr[2] */
    void (*interleave)(const convt_interleave *run);
    int (*wino_in)(int ny, int nx, const convt_wino_in *tile); /* ny, nx: points per axis, 1, 3, 4 or 6; returns 1 */
    int (*wino_rows)(int ny, int nx, const convt_wino_in *tile); /* into E; returns 0 if E cannot hold a value, else not 0 */
    void (*wino_out)(int kind_y, int kind_x, const convt_wino_out *tile);
    int (*wino_filter)(const convt_wino_filter *panel); /* returns 0 if E cannot hold a value, else not 0 */
    /* dst[r * ld + c] = src[r * rs + c * cs] converted from S to E for r < rows and c < cols; 0 for cols <= c < cols_padded.
     * Returns 0 if E cannot hold a value; CONVT_FITS_WEIGHTS if the values may be weights or data; otherwise 1: they may only
     * be data. The least magnitude of weights is larger than that of data, because the product of a small weight and a small
     * datum must stay in the range of an AMX product. `pack_b` returns the same values. */
    int (*pack)(void *dst, ptrdiff_t ld, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols, int cols_padded);
    /* `pack` for data that is not in cache. For AMX tiles it also prefetches rows that are packed later, because tiles of few
     * columns prefetch less than they use. */
    int (*pack_uncached)(void *dst, ptrdiff_t ld, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols,
                         int cols_padded);
    /* dst[r * ld + c] = src[r * rs + map[c]] converted from S to T, for r < rows and c < cols. Columns cols <= c <
     * cols_writable may be overwritten. */
    void (*gather)(void *dst, ptrdiff_t ld, const void *src, ptrdiff_t rs, const int64_t *map, int rows, int cols,
                   int cols_writable);
    /* dst[r * ld + c * dc] = src[r * rs + c * cs] for r < rows and c < cols, all of S. With rs = 1 and dc = 1, contiguous
     * columns become contiguous rows in registers. With `stream`, whole aligned vectors of them take non-temporal stores. */
    void (*transpose)(void *dst, ptrdiff_t ld, ptrdiff_t dc, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols,
                      int stream);
    /* widen: dst[r * ld + c] = src[r * rs + c * cs] converted from S to T, padded and with the return value of `pack`. narrow:
     * dst[r * ld + c * dc] = src[r * rs + c * cs] rounded from T to S. With `stream`, whole aligned vectors take non-temporal
     * stores. NULL if S is T: use `transpose`. */
    int (*widen)(void *dst, ptrdiff_t ld, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols, int cols_padded);
    void (*narrow)(void *dst, ptrdiff_t ld, ptrdiff_t dc, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols,
                   int stream);
    /* B: element (k0 + r, n0 + c) of a panel of nb columns = src[r * rs + c * cs] converted from S to E, for r < rows and c <
     * cols. If k0 starts a step of depth, the call may write zeros to the rest of the last step, in vectors of columns that it
     * fills. */
    int (*pack_b)(void *dst, int k0, int n0, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols, int nb);
    int (*finite)(const void *p, size_t bytes); /* returns 1 if no element of S is NaN or infinite, else 0 */
    void (*pixel_gemm)(int mr, const convt_pixel_gemm *run);
    void (*overlap)(const convt_overlap *o);
    /* `overlap` with col transposed: pixel i of column c is at col + c * ld + (i - i0). At most CONVT_PIXEL_LANES lanes. If
     * there are pixels, it may read the vector before pixel i0 of a column and the vector from pixel i1 on. */
    void (*overlap_pixels)(const convt_overlap *o);
    void (*overlap_gather)(const convt_overlap_gather *o);
    /* rows[m][c * cs] = act(src[m * ld + c]) rounded from T to S, for m < mr and c < cols. A NULL row is left out. Any
     * activation. */
    void (*store)(void *const *rows, ptrdiff_t cs, const void *src, ptrdiff_t ld, int mr, int cols, const convt_act *act);
    /* to[i] = act(to[i] + from[i]) for i < n, added in T and rounded to S. Any activation. `from` may be NULL: nothing is added. */
    void (*add)(void *to, const void *from, int64_t n, const convt_act *act);
} convt_kernels;

/* The units. Every unit but the first has kernels for some dtypes only; `tile` is NULL for the other dtypes. */
enum {
    CONVT_ON_VECTORS,  /* multiply-adds of T in vectors */
    CONVT_ON_DOTS,     /* dot products of pairs of bfloat16: an element is a bfloat16, or a float32 rounded to one */
    CONVT_ON_AMX,      /* AMX tiles, as exact as float32: a float32 is split into three bfloat16, a float16 into two */
    CONVT_ON_AMX_TWO,  /* AMX tiles: a float32 is split into two bfloat16 */
    CONVT_ON_AMX_ONE,  /* AMX tiles: a float32 is rounded to one bfloat16 */
    CONVT_UNITS
};

/* The table of an instruction set. */
typedef struct {
    const char *name;
    convt_kernels set[CONVT_UNITS][CONVT_DTYPES];
    double (*peak[CONVT_UNITS])(int dtype, double seconds); /* measures the FLOP/s of one thread with a unit's instruction, for
                                                             * about `seconds`; NULL for AMX and missing units */
} convt_isa;

/* The attribute of a function that runs on every CPU, although its file is compiled for one instruction set: it uses no vector
 * registers. CONVT_TABLES_ANYWHERE is 1 if the compiler has such an attribute. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CONVT_ANY_CPU __attribute__((target("general-regs-only")))
#define CONVT_TABLES_ANYWHERE 1
#elif defined(__aarch64__) /* compilers do not use the instructions of larger rows on their own */
#define CONVT_ANY_CPU
#define CONVT_TABLES_ANYWHERE 1
#else
#define CONVT_ANY_CPU
#define CONVT_TABLES_ANYWHERE 0
#endif

/* isa_<name>.c defines convt_set_kernels_<name>(isa), or one such function per part (body.h). It gets a copy of the table of the
 * base row of this instruction set (an empty table for baseline) and replaces the entries for which it has kernels.
 *
 * dispatch.c: the rows of the table in setup.py, from the smallest to the largest instruction set. convt_isa_count returns
 * their number, convt_isa_at the table of a row, convt_isa_available 1 if this CPU and operating system can run it.
 */
int convt_isa_count(void);
const convt_isa *convt_isa_at(int index);
int convt_isa_available(int index);

/* Return the bytes of the data cache of a level (1 is the first); 0 if the CPU does not report it. */
long convt_cache_bytes(int level);

/* Return a / b, neither of them negative. Most operands fit 32 bits. Older CPUs divide 32 bits in a third of the time of 64
 * bits. */
static inline int64_t convt_quotient(int64_t a, int64_t b)
{
    return (uint64_t)(a | b) >> 32 ? a / b : (int64_t)((uint32_t)a / (uint32_t)b);
}

/* The head of a `for` loop over the cache lines that hold the bytes row[0] to row[bytes - 1]. */
#define CONVT_EACH_LINE(row, bytes) (const char *line = row - ((uintptr_t)row & 63); line < row + bytes; line += 64)

/* GCC drops calls of functions that only prefetch, because they have no effect on the state of the program. An empty volatile
 * statement is an effect. */
#define CONVT_HAS_EFFECT __asm__ volatile("")

/* Prefetch into L1 the cache lines of a row that is written immediately, at any alignment. */
static inline void convt_prefetch_row_l1(const char *row, ptrdiff_t bytes)
{
    for CONVT_EACH_LINE(row, bytes)
        __builtin_prefetch(line, 1);
    CONVT_HAS_EFFECT;
}

/* Prefetch into L2 the cache lines of a row that is read or written later. L1 would evict most of them before, and its few fill
 * buffers are needed for current reads. */
static inline void convt_prefetch_row_l2(const char *row, ptrdiff_t bytes)
{
    for CONVT_EACH_LINE(row, bytes)
        __builtin_prefetch(line, 0, 2);
    CONVT_HAS_EFFECT;
}

#ifdef CONVT_DEBUG
#include <assert.h>
#define CONVT_CHECKS 1
#define CONVT_ASSERT(x) assert((x)) /* x may contain commas after macro expansion */
#else
#define CONVT_CHECKS 0
#define CONVT_ASSERT(x) ((void)0)
#endif

#endif
