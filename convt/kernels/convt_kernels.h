/* The contract between the algorithms' loops and the micro-kernels. Written once, here.
 *
 * A kernel set serves one storage dtype at one instruction set. It has three element types: S of user memory, E of packed
 * panels, T of accumulators:
 *     float32: S = E = T = float     float64: S = E = T = double
 *     float16: S = f16, E = T = float    bfloat16: S = bf16, E = T = float
 * and where bfloat16 are multiplied: T = float, E = one or several bfloat16, as CONVT_ON_DOTS and CONVT_ON_AMX say.
 *
 * Panels. The GEMM's A is `mr` rows of at most CONVT_KC elements E, `lda` apart where they were packed; B is kc rows of one
 * or two vectors (nb elements). Where kstep is 2 (dot product), B holds pairs of rows interleaved: element (k, n) at
 * ((k / 2) * nb + n) * 2 + k % 2, and kc is even. With AMX tiles kstep is the depth of one multiplication; body_matrix.h
 * gives the layout of panels.
 *
 * Strides are in elements and may be any sign. User memory needs only its elements' own alignment; panels and
 * accumulators are ours and 64-byte aligned. Kernels never read or write outside the m, n, counts they are given:
 * they own their edges. CONVT_DEBUG builds assert the preconditions given here.
 */
#ifndef CONVT_KERNELS_H
#define CONVT_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* Depth of a panel, and elements between packed rows of A for vector kernels: a cache line more than the depth, so that rows at
 * the same depth fall into different L1 sets. */
#define CONVT_KC 256
#define CONVT_LDA (CONVT_KC + 16)

enum { CONVT_NONE, CONVT_CLIP, CONVT_LEAKY, CONVT_TANH, CONVT_SIGMOID, CONVT_GELU, CONVT_SWISH };

/* An activation: a and b are clip's bounds (relu is a clip from 0) or leaky's slope. */
typedef struct {
    int code;
    double a, b;
} convt_act;

/* Deferred non-temporal stores: an AMX tile kernel leaves its results in `sums`, of a register tile's size and aligned, and the
 * next one stores them row by row while it multiplies. */
typedef struct {
    void *sums;            /* T */
    void *from;            /* T, the next row, of `cols` columns */
    void *const *rows;     /* where it goes, at `at` */
    ptrdiff_t at;
    int cols, left;        /* whole vectors; rows not stored yet */
    const convt_act *act;
} convt_late;

enum { CONVT_F32, CONVT_F64, CONVT_F16, CONVT_BF16, CONVT_DTYPES };

/* One register tile: rows[m][at..at + cols) = act(A B + init), m < mr; without init, A B is added to what is there. Then
 * `more` tiles, whose rows of A, of `rows` and of init follow: at little depth a call would take longer than the tile. */
typedef struct {
    int kc;                /* depth, <= CONVT_KC */
    int nv;                /* vectors in a row of B; of two panels, twice as many as one can have */
    const void *a, *b;     /* rows, and a panel */
    ptrdiff_t lda;         /* elements between the rows of A, of any sign */
    const void *init;      /* T: added to the products, row m at init + m * init_ld (0: the same row, the bias); or NULL */
    ptrdiff_t init_ld;
    void *const *rows;     /* T: row m goes to rows[m] + at */
    ptrdiff_t at;
    int cols;              /* columns stored: more than nv - 1 vectors, at most nv */
    const convt_act *act;  /* NONE, CLIP or LEAKY; others are applied by `store` */
    int stream;            /* whole vectors may take non-temporal stores: every row is vector-aligned */
    int narrow;            /* rows are not of T but of CONVT_F16 or CONVT_BF16, which accumulators are rounded to; 0: of T */
    const void *b2, *init2; /* of a second panel for the same rows: as b, init and at; then `cols` is all of both */
    ptrdiff_t at2;
    const char *ahead;     /* what is read after this tile: every `pace` of depth it prefetches a line of that, or as many as it
                            * reads of A meanwhile, */
    ptrdiff_t ahead_step;  /* and `ahead` moves on by this many bytes */
    int more;
    convt_late *late;      /* stores that the tile before left to this one; NULL but with AMX tiles */
} convt_tile;

/* The operands of a term of a depthwise phase: elements from the start of each source, and of its weights. */
typedef struct {
    ptrdiff_t in, w;
} convt_dw_term;

/* A phase of a depthwise run: its terms, and where its outputs start. With `cut` only the lanes of `mask` have the last term.
 * Adjacent phases whose terms read the same pixels make a set: `sharing` of its first phase is the number of them. */
typedef struct {
    const convt_dw_term *term;
    int terms, cut, sharing;
    int sliding;           /* each term reads the pixel before that of the term before */
    int before, after;     /* outputs beyond the run: the i-th before it lacks the last i terms of the set's first phase, which
                            * may have one more than this one has; the i-th after it lacks the first i terms */
    int64_t first, last;   /* of groups: the j's of the whole run that it has; others are computed, but not stored */
    ptrdiff_t out;
} convt_dw_phase;

/* Kernels that keep weights in registers are for phases of at most so many terms and sources. */
#define CONVT_DW_TERMS 3
#define CONVT_DW_SOURCES 3
#define CONVT_DW_ORDERED 2 /* terms and sources of kernels that store in memory order */
#define CONVT_DOTS 4
#define CONVT_DW_PRODUCTS 64 /* of a phase's terms and input rows, where groups of several channels lie in vectors */

/* The layout of groups of several channels in vectors (body_groups.h): a vector of outputs is of `each` groups, or of a part of
 * one. */
typedef struct {
    int ci, each;          /* in-channels of a group, a multiple of `each`, which is 1 or 2 */
    const int64_t *at;     /* for each vector, `each` elements from a pixel's first channel to a group's */
    const int64_t *first, *lanes; /* of each vector: its first out channel, and the number of them */
    ptrdiff_t w_ld;        /* elements between the weights of vectors of outputs. A term has ci vectors of weights: of each
                            * group in turn those of `each` in-channels, lanes as body_groups.h says */
    int dots;              /* whether vectors run over in-channels instead (body_dots.h), which fill whole vectors of a group:
                            * `lanes` are then its out channels, at most CONVT_DOTS; a term has, for each vector of in-channels,
                            * one vector of weights for each out channel */
} convt_dw_groups;

/* One run of a depthwise convolution: for j < n, every phase p and c < cols:
 * out[j * out_ld + phase[p].out + c] = act(init[c] + sum over the phase's terms u and all sources s, which are input rows and
 * the channels of a group, of in[s][from + term[u].in + j * in_ld + c] * w[s][term[u].w + c]).
 * Phases are written side by side, so that every cache line of the output is filled while it is in L1. An output may be
 * written twice, with the same value. With `at`, inputs are permuted: that of column c of a vector that starts at column v is
 * at at[v] + index[c], with index[c] < `reach`; with `room` all `reach` elements from at[v] on can be read. */
typedef struct {
    int n, cols, phases, sources;
    int low, high;         /* whether the phases' outputs before and after are computed, too */
    int skips;             /* whether terms may be outside the row, where they add nothing (one phase, or groups) */
    int64_t low_pixel, high_pixel; /* the j's whose first term is inside the row */
    const int64_t *at;     /* or NULL */
    const int32_t *index;  /* ascending in a vector; whole vectors, of which the last repeats its last column */
    int room;
    ptrdiff_t apart;       /* from each at[v] to the next one's, VL columns on, if all vectors are alike; else 0 */
    const convt_dw_phase *phase;
    const void *const *in; /* T, one pointer per source */
    ptrdiff_t from, in_ld;
    const void *const *w;  /* T, one pointer per source; rows are padded to whole vectors */
    const void *mask;      /* T, padded likewise: bits all set or none */
    int none;              /* the mask is set in no lane from here on */
    const void *init;      /* T, padded likewise */
    void *out;             /* T */
    ptrdiff_t out_ld;
    int ordered;           /* outputs of a row are contiguous and not in cache: stored in memory order by kernels that can */
    ptrdiff_t ahead;       /* elements from an output to the one whose line is prefetched as it is stored */
    const convt_act *act;  /* NONE, CLIP or LEAKY */
    int stream;            /* outputs take non-temporal stores: whole vectors, all aligned, each a cache line */
    const convt_dw_groups *groups; /* or NULL: vectors v0 to v1 of these, `cols` columns in all; sources are input rows, from a
                            * pixel's first channel on; at, index, mask, cut, before and after are not used */
    int v0, v1;
    int64_t start;         /* j's of the run before these */
    int far;               /* whether inputs exceed L2: kernels prefetch those ahead where the hardware does not */
    const void *coming;    /* T, or NULL: the input row that outputs of the next row read first. Kernels by blocks of j's
                            * prefetch it into L2, as the hardware does not foresee their reads */
    ptrdiff_t beside;      /* set by kernels whose vectors hold accumulators of two j's: the distance of these */
} convt_dw;

/* Overlap-add along an axis of dilation 1: for j0 <= j < j1 and lane_lo <= l < lane_hi,
 * out(j, l) = act(init[l] + sum over u < terms of col[j - u][u * lanes + l]), rows outside [i0, i1) and columns beyond
 * `cols` left out. Lanes are (phase, channel): `lanes` = stride * channels. */
typedef struct {
    void *col;             /* T, row i at col + (i - i0) * ld */
    ptrdiff_t ld;
    int64_t i0, i1, j0, j1;
    int terms, lanes, cols, channels, lane_lo, lane_hi;
    const void *init;      /* T */
    void *out;             /* S, where lane 0 of j0 goes (even if lane_lo > 0) */
    ptrdiff_t out_j, out_x, out_c; /* elements between j, phases, channels */
    const convt_act *act;
} convt_overlap;

/* The GEMM before `overlap_across`, of few columns and with pixels in lanes. For p < pixels and m < mr: out[m * ld + p] = sum over
 * k < kc of a[m * CONVT_LDA + k] * src[p * cs + k * rs], added to what is there with `add`. Whole vectors of `out` are written.
 * Where cs is not 1, rs is: such pixels are transposed in registers. */
typedef struct {
    int kc, pixels, add;   /* kc: at most CONVT_KC; where rs is 1 at least 16 bytes of T */
    const void *src;       /* S */
    ptrdiff_t cs, rs, ld;
    const void *a;         /* T */
    void *out;             /* T */
} convt_across;

/* Overlap-add by gathers, in the order of outputs: one vector after the other, out = act(init[index] + sum over `terms` of
 * col[index]), with a vector of indices for each of these in turn. */
typedef struct {
    const void *col, *init; /* T */
    const int32_t *index;  /* whole vectors, whatever `count` is */
    int64_t count;
    int terms;
    void *out;             /* S */
    const convt_act *act;
} convt_picked;

/* Winograd's input transform of a tile along two axes: columns first to last of the rows in[y * nx + x] go to
 * out + y * out_y + x * out_x; whole vectors are written, or whole steps of depth of E. */
typedef struct {
    const void *const *in; /* T */
    void *out;             /* T or E */
    ptrdiff_t out_y, out_x; /* bytes */
    int first, last;
} convt_wino_in;

/* Winograd's output transform along two axes: rows[y * mx + x] = act(outputs(in) + init), where point (y, x) of the products
 * is at in + y * in_y + x * in_x. Adds 0 times every output to `check`, a vector, which so becomes NaN if one is not finite. */
typedef struct {
    const void *in;        /* T */
    ptrdiff_t in_y, in_x;
    const void *init;      /* T, whole vectors */
    void *const *rows;     /* T; NULL is left out */
    int cols;
    int stream;            /* whole vectors take non-temporal stores: every row is vector-aligned */
    const convt_act *act;  /* NONE, CLIP or LEAKY */
    void *check;           /* T, one vector */
} convt_wino_out;

/* Winograd's filter transform: for r < rows, i < n and c < cols, out[r * out_row + i * out_step + c] = the sum over
 * start[r] <= e < start[r + 1] of scale[e] * in[at[e] + i * in_step + c]. For AMX tiles these are the elements of a panel of
 * out_step columns, and all of a step of depth is written, zeros from row n on. */
typedef struct {
    const void *in;        /* T */
    ptrdiff_t in_step;
    void *out;             /* E */
    ptrdiff_t out_row, out_step;
    int n, cols, rows;     /* cols: whole vectors; for AMX tiles n is no more than a step of depth */
    int stream;            /* out, vector-aligned, takes non-temporal stores; not for AMX tiles */
    const int64_t *start, *at;
    const void *scale;     /* T */
} convt_wino_filter;

/* Rows of outputs from rows of inputs, with pixels in vectors: for m < mr and i < n,
 * rows[m][i] = init[m] + the sum over s < sources and t < shifts of in[s][i + shift[t]] * w[s][t * mr + m].
 * Whole vectors are read and written. */
typedef struct {
    int n, sources, shifts;
    const void *const *in; /* T */
    const void *const *w;  /* T */
    const ptrdiff_t *shift;
    const void *init;      /* T */
    void *const *rows;     /* T */
} convt_rows;

/* Rows of outputs whose phases alternate: for r < rows and first <= e < last,
 * out[r][e * step] = act(bias[r] + row[(r * phases + e % phases) * ld + e / phases]). */
typedef struct {
    int64_t phases;        /* at most CONVT_INTERLEAVED */
    int64_t first, last;
    int rows;
    const void *row;       /* T; whole vectors are read */
    ptrdiff_t ld;
    const void *bias;      /* T, or NULL */
    void *const *out;      /* S; NULL is left out */
    ptrdiff_t step;
    const convt_act *act;
    int stream;            /* aligned vectors take non-temporal stores */
} convt_interleave;

#define CONVT_INTERLEAVED 64

#define CONVT_FITS_WEIGHTS 2

/* Kinds of an axis in `wino_out`: F(1, 1), F(2, 2), F(2, 3), F(3, 2), F(4, 3), F(5, 2), of 1, 3, 4, 4, 6, 6 points. */
#define CONVT_WINO_KINDS 6

/* Lanes that `overlap_across` can take, and columns that `across` can. */
#define CONVT_ACROSS 64
#define CONVT_ACROSS_MR 8

typedef struct {
    int mr[3];             /* most rows m_r of a register tile, by vectors in a row of B */
    int wide;              /* the same of a tile of two panels, which hides the latency of few rows; 0 where there is none */
    int nr, vl;            /* columns of a panel, and lanes of a vector of T */
    int kstep;             /* what depths are a multiple of: 1, 2 where B holds pairs, the depth of an AMX multiplication */
    int grain;             /* rows that a tile reads at a time, even if it has fewer */
    int pace;              /* depth after which a tile prefetches once from `ahead` */
    int lda;               /* elements between packed rows */
    int parts;             /* bfloat16 that an element is split into for AMX tiles; 0 for vectors */
    int s_size, e_size, t_size;
    int direct_store;      /* S = T: tiles may be stored straight into user memory */
    int narrows;           /* the same by a tile's `narrow`; 0 where it can't */
    int reach;             /* how many adjacent elements `depthwise` permutes the lanes of a vector from */

    void (*tile)(int mr, const convt_tile *tile);
    void (*flush)(convt_late *late); /* stores what the last tile left; NULL but with AMX tiles */
    void (*stream)(void *dst, const void *src, size_t bytes); /* a copy of whole cache lines by non-temporal stores */
    void (*fence)(void);   /* makes non-temporal stores visible to other threads */
    void (*enter)(void);   /* before a thread's first tile of a call, and after its last; or NULL */
    void (*leave)(void);
    void (*depthwise)(const convt_dw *run);
    void (*rows)(int mr, const convt_rows *run); /* mr: at most mr[2] */
    void (*interleave)(const convt_interleave *run);
    int (*wino_in)(int ny, int nx, const convt_wino_in *tile); /* points per axis: 1, 3, 4 or 6 */
    int (*wino_rows)(int ny, int nx, const convt_wino_in *tile); /* the same into E; returns whether E can hold them all */
    void (*wino_out)(int kind_y, int kind_x, const convt_wino_out *tile);
    int (*wino_filter)(const convt_wino_filter *panel); /* returns whether E can hold all that it wrote */
    /* dst[r][c] = src[r * rs + c * cs] converted to E, c < cols; zero for cols <= c < cols_padded. Returns 0 where E can't hold
     * them all, else CONVT_FITS_WEIGHTS, or less where they may only be data: products of small weights by small data must be
     * no smaller than AMX multiplies. So does `pack_b`. */
    int (*pack)(void *dst, ptrdiff_t ld, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols, int cols_padded);
    /* The same of data that is not in cache: for AMX tiles it prefetches rows that are packed later, as tiles of few columns
     * prefetch less than they use. */
    int (*pack_far)(void *dst, ptrdiff_t ld, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols, int cols_padded);
    /* dst[r][c] = src[r * rs + map[c]] as T, c < cols; cols <= c < room may be overwritten. */
    void (*gather)(void *dst, ptrdiff_t ld, const void *src, ptrdiff_t rs, const int64_t *map, int rows, int cols, int room);
    /* dst[r * ld + c * dc] = src[r * rs + c * cs], all of S: contiguous columns (rs = 1) become contiguous rows (dc = 1) in
     * registers. With `stream` those of them that are whole aligned vectors take non-temporal stores. */
    void (*transpose)(void *dst, ptrdiff_t ld, ptrdiff_t dc, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols,
                      int stream);
    /* What blocks whose elements are T are made of, and back: dst[r * ld + c] = src[r * rs + c * cs], from S to T by `widen`, which
     * pads as `pack` does, and rounded from T to S by `narrow`, where dst[r * ld + c * dc]. With `stream` whole aligned vectors
     * take non-temporal stores. */
    int (*widen)(void *dst, ptrdiff_t ld, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols, int cols_padded);
    void (*narrow)(void *dst, ptrdiff_t ld, ptrdiff_t dc, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols,
                   int stream);
    /* B: element (k0 + r, n0 + c) of a panel of nb columns = src[r * rs + c * cs], r < rows, c < cols. From a k0 on that
     * starts a step of depth, the rest of the last step may become zero in the vectors that are whole. */
    int (*pack_b)(void *dst, int k0, int n0, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols, int nb);
    int (*finite)(const void *p, size_t bytes); /* no NaN, no Inf among S */
    void (*across)(int mr, const convt_across *run);
    void (*overlap)(const convt_overlap *o);
    /* `overlap` with col transposed: pixel i of column c at col + c * ld + (i - i0); at most CONVT_ACROSS lanes. It may read
     * the vector before pixel i0 of a column and the one from i1 on, where there are pixels. */
    void (*overlap_across)(const convt_overlap *o);
    void (*overlap_picked)(const convt_picked *o);
    /* rows[m][c * cs] = act(src[m * ld + c]) rounded to S, m < mr, c < cols; a NULL row is left out. */
    void (*store)(void *const *rows, ptrdiff_t cs, const void *src, ptrdiff_t ld, int mr, int cols, const convt_act *act);
} convt_kernels;

/* What multiplies. Of the units but the first, which have kernels for some dtypes, `tile` is NULL where there are none. */
enum {
    CONVT_ON_VECTORS,  /* multiply-adds of T */
    CONVT_ON_DOTS,     /* dot products of pairs of bfloat16: a bfloat16, or a float32 rounded to one */
    CONVT_ON_AMX,      /* AMX tiles, as exact as float32: a float32 is split into three bfloat16, a float16 into two */
    CONVT_ON_AMX_TWO,  /* AMX tiles of a float32 as two bfloat16, */
    CONVT_ON_AMX_ONE,  /* or as one */
    CONVT_UNITS
};

typedef struct {
    const char *name;
    convt_kernels set[CONVT_UNITS][CONVT_DTYPES];
    double (*peak)(int dtype, double seconds); /* measured FLOP/s of one thread's multiply-add units */
} convt_isa;

/* A function that a file compiled for one instruction set has for CPUs that lack it: it uses no vector registers. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CONVT_ANY_CPU __attribute__((target("general-regs-only")))
#define CONVT_TABLES_ANYWHERE 1
#else
#define CONVT_ANY_CPU
#define CONVT_TABLES_ANYWHERE 0
#endif

/* isa_<name>.c: convt_improve_<name>(isa) gets the table of the row that this one builds on (of baseline: an empty one) and
 * overwrites what it does better. Nothing else of these files is seen outside.
 *
 * dispatch.c: the rows of setup.py's table, from least to most. */
int convt_isa_count(void);
const convt_isa *convt_isa_at(int index);
int convt_isa_available(int index);

/* Bytes of the first-level data cache, or of a higher level; 0 where the CPU does not say. */
long convt_cache_bytes(int level);

/* a / b, neither negative. They mostly fit 32 bits, in which older CPUs divide in a third of the time that 64 take. */
static inline int64_t convt_quotient(int64_t a, int64_t b)
{
    return (uint64_t)(a | b) >> 32 ? a / b : (int64_t)((uint32_t)a / (uint32_t)b);
}

#define CONVT_EACH_LINE(row, bytes) (const char *line = row - ((uintptr_t)row & 63); line < row + bytes; line += 64)

/* Prefetches the lines of a row that is written at once, wherever it starts. */
static inline void convt_prefetch_row(const char *row, ptrdiff_t bytes)
{
    for CONVT_EACH_LINE(row, bytes)
        __builtin_prefetch(line, 1);
}

/* Prefetches the lines of a row that is read or written later into L2: L1 would lose most of them again, and its few fill
 * buffers are for what is read right now. */
static inline void convt_prefetch_ahead(const char *row, ptrdiff_t bytes)
{
    for CONVT_EACH_LINE(row, bytes)
        __builtin_prefetch(line, 0, 2);
}

#ifdef CONVT_DEBUG
#include <assert.h>
#define CONVT_ASSERT(x) assert((x)) /* x may hold commas once its macros are expanded */
#else
#define CONVT_ASSERT(x) ((void)0)
#endif

#endif
