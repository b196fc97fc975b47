# How many of OpenMP's threads brief calls use while other processes take cores.
#
# A parallel region ends when all of its threads are done. A thread that another process keeps from running lets the others wait for
# a time slice, some milliseconds, which is long beside a call of a tenth of one. So regions note how long their first thread waited
# for the others, and how long it would have computed beyond that alone. If the waits are a quarter of what was saved, brief calls
# use one thread fewer for a pause: with two threads they then run alone, with more the system has a core for each. Each time that
# a full team has to wait again, the pause is four times as long; a pause without waits halves it. Numbers are changed by several
# threads without a lock, because an estimate may miss a few calls.

from libc.stdint cimport int64_t

cdef extern from *:
    """
    #ifdef _OPENMP
    #include <omp.h>
    static inline int64_t convt_now(void) { return (int64_t)(omp_get_wtime() * 1e9); }
    #else
    static inline int64_t convt_now(void) { return 0; }
    #endif
    #define CONVT_LEAST_WAIT INT64_C(1000000)     /* nanoseconds, before which nothing is concluded */
    #define CONVT_KNOWN INT64_C(200000000)        /* what was saved counts half as much after so many */
    #define CONVT_LEAST_PAUSE INT64_C(20000000)
    #define CONVT_MOST_PAUSE INT64_C(500000000)

    typedef struct {
        int64_t waited, saved;  /* nanoseconds, lately */
        int64_t until, pause;   /* when a full team is tried again, and how long it is not */
        int64_t fewer;          /* threads that brief calls do without until then */
    } convt_team;

    #define CONVT_GET(field) __atomic_load_n(&team->field, __ATOMIC_RELAXED)
    #define CONVT_SET(field, value) __atomic_store_n(&team->field, value, __ATOMIC_RELAXED)

    /* The threads of a brief call that may use so many. */
    static inline int convt_team_of(convt_team *team, int threads, int64_t now)
    {
        const int64_t fewer = CONVT_GET(fewer);
        return fewer == 0 || now >= CONVT_GET(until) ? threads : threads > fewer ? (int)(threads - fewer) : 1;
    }

    /* Notes a region of so many threads, when it began, when its first thread was done, and when all were. */
    static inline void convt_team_note(convt_team *team, int threads, int64_t began, int64_t done, int64_t ended)
    {
        const int64_t until = CONVT_GET(until), fewer = CONVT_GET(fewer), paused = ended < until;
        int64_t waited = CONVT_GET(waited) + ended - done, saved = CONVT_GET(saved) + (threads - 1) * (done - began);
        int64_t pause = CONVT_GET(pause);
        if (saved > CONVT_KNOWN)
            waited /= 2, saved /= 2;
        if (waited > CONVT_LEAST_WAIT && waited > saved / 4) {
            if (!paused)
                pause = 4 * pause < CONVT_LEAST_PAUSE ? CONVT_LEAST_PAUSE : 4 * pause < CONVT_MOST_PAUSE ? 4 * pause : CONVT_MOST_PAUSE;
            CONVT_SET(fewer, fewer == 0 ? 1 : paused && fewer < threads ? 2 * fewer : fewer);
            CONVT_SET(pause, pause);
            CONVT_SET(until, ended + pause);
            waited = saved = 0;
        } else if (fewer && ended > until + pause) {
            CONVT_SET(pause, pause / 2);
            CONVT_SET(fewer, pause / 2 < CONVT_LEAST_PAUSE ? 0 : fewer);
            CONVT_SET(until, ended);
        }
        CONVT_SET(waited, waited);
        CONVT_SET(saved, saved);
    }
    """
    ctypedef struct convt_team:
        int64_t waited, saved, until, pause, fewer
    int64_t convt_now() noexcept nogil
    int convt_team_of(convt_team *team, int threads, int64_t now) noexcept nogil
    void convt_team_note(convt_team *team, int threads, int64_t began, int64_t done, int64_t ended) noexcept nogil
