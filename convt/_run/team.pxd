# The number of OpenMP threads of brief calls while other processes use cores.
#
# A parallel region ends when all its threads are done. If another process delays one thread, the others wait for a time slice
# of some milliseconds, which is long for a call of a tenth of a millisecond. Each region therefore records how long its first
# thread did not compute, because it waited for the others or for a core, and how much computing the other threads saved. The
# clock of the thread tells, because a first thread that lost its core looks busy to any other clock. If the waits exceed a
# quarter of the savings, brief calls use one thread fewer for a pause: with two threads they then run on one, with more the
# system has a core for each remaining thread. If a full team has to wait again after the pause, the next pause is four times
# as long; a pause without waits halves it. Threads change the numbers without a lock, because an estimate may miss a few
# calls.

from libc.stdint cimport int64_t

cdef extern from *:
    """
    #ifdef _OPENMP
    #include <omp.h>
    #include <time.h>
    static inline int64_t convt_now(void) { return (int64_t)(omp_get_wtime() * 1e9); }

    /* Returns the nanoseconds that this thread has computed, without the time in which it was ready but had no core. */
    static inline int64_t convt_worked(void)
    {
        struct timespec time;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
        return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
    }
    #else
    static inline int64_t convt_now(void) { return 0; }
    static inline int64_t convt_worked(void) { return 0; }
    #endif
    #define CONVT_LEAST_WAIT INT64_C(1000000)     /* nanoseconds of waits below which nothing is decided */
    #define CONVT_MOST_SAVED INT64_C(200000000)   /* nanoseconds of savings above which waits and savings are halved */
    #define CONVT_LEAST_PAUSE INT64_C(100000000)
    #define CONVT_MOST_PAUSE INT64_C(500000000)

    typedef struct {
        int64_t waited, saved;    /* nanoseconds, of recent regions */
        int64_t pause_end, pause; /* end of the current pause, and its length, nanoseconds */
        int64_t left_out;         /* number of threads that brief calls do not use during the pause */
    } convt_team;

    #define CONVT_GET(field) __atomic_load_n(&team->field, __ATOMIC_RELAXED)
    #define CONVT_SET(field, value) __atomic_store_n(&team->field, value, __ATOMIC_RELAXED)

    /* Returns the number of threads of a brief call that may use up to `threads`. */
    static inline int convt_team_threads(convt_team *team, int threads, int64_t now)
    {
        const int64_t left_out = CONVT_GET(left_out);
        return left_out == 0 || now >= CONVT_GET(pause_end) ? threads : threads > left_out ? (int)(threads - left_out) : 1;
    }

    /* Records a region of `threads` threads: when it began and ended, and how long its first thread worked. */
    static inline void convt_team_record(convt_team *team, int threads, int64_t began, int64_t worked, int64_t ended)
    {
        const int64_t pause_end = CONVT_GET(pause_end), left_out = CONVT_GET(left_out), paused = ended < pause_end;
        int64_t waited = CONVT_GET(waited) + ended - began - worked, saved = CONVT_GET(saved) + (threads - 1) * worked;
        int64_t pause = CONVT_GET(pause);
        if (saved > CONVT_MOST_SAVED)
            waited /= 2, saved /= 2;
        if (waited > CONVT_LEAST_WAIT && waited > saved / 4) {
            if (!paused)
                pause = 4 * pause < CONVT_LEAST_PAUSE ? CONVT_LEAST_PAUSE : 4 * pause < CONVT_MOST_PAUSE ? 4 * pause : CONVT_MOST_PAUSE;
            CONVT_SET(left_out, left_out == 0 ? 1 : paused && left_out < threads ? 2 * left_out : left_out);
            CONVT_SET(pause, pause);
            CONVT_SET(pause_end, ended + pause);
            waited = saved = 0;
        } else if (left_out && ended > pause_end + pause) {
            CONVT_SET(pause, pause / 2);
            CONVT_SET(left_out, pause / 2 < CONVT_LEAST_PAUSE ? 0 : left_out);
            CONVT_SET(pause_end, ended);
        }
        CONVT_SET(waited, waited);
        CONVT_SET(saved, saved);
    }
    """
    ctypedef struct convt_team:
        int64_t waited, saved, pause_end, pause, left_out
    int64_t convt_now() noexcept nogil
    int64_t convt_worked() noexcept nogil
    int convt_team_threads(convt_team *team, int threads, int64_t now) noexcept nogil
    void convt_team_record(convt_team *team, int threads, int64_t began, int64_t worked, int64_t ended) noexcept nogil
