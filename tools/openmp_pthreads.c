/* A replacement of GCC's OpenMP library (libgomp) under ThreadSanitizer, which cannot see how libgomp waits. Teams are threads
 * that pthread's functions create and join. This file has the functions that GCC calls for parallel regions, barriers and dynamic
 * loops, and the three omp_ functions that convt uses. Loops end with a barrier, so a team runs one loop at a time. */

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct {
    unsigned size;
    void (*work)(void *);
    void *data;
    pthread_barrier_t barrier;
    pthread_mutex_t lock; /* guards the loop: loops, next, end, step */
    unsigned loops;       /* loops begun so far */
    long next, end, step;
} team;

typedef struct {
    team *team;
    unsigned number, loops; /* loops this thread has reached */
} member;

static __thread member self;

int omp_get_max_threads(void) { return (int)sysconf(_SC_NPROCESSORS_ONLN); }
int omp_get_num_threads(void) { return self.team ? (int)self.team->size : 1; }
int omp_get_thread_num(void) { return (int)self.number; }

static void *run(void *given)
{
    self = *(member *)given;
    self.team->work(self.team->data);
    return NULL;
}

void GOMP_parallel(void (*work)(void *), void *data, unsigned threads, unsigned flags)
{
    (void)flags;
    /* A nested team has one thread, as in libgomp by default. */
    team all = {.size = self.team ? 1 : threads ? threads : (unsigned)omp_get_max_threads(), .work = work, .data = data};
    const member outer = self;
    member *members = calloc(all.size, sizeof *members);
    pthread_t *ids = calloc(all.size, sizeof *ids);
    if (!members || !ids || pthread_barrier_init(&all.barrier, NULL, all.size) || pthread_mutex_init(&all.lock, NULL))
        abort();
    for (unsigned n = 0; n < all.size; n++)
        members[n] = (member){.team = &all, .number = n};
    for (unsigned n = 1; n < all.size; n++)
        if (pthread_create(&ids[n], NULL, run, &members[n]))
            abort();
    run(&members[0]);
    for (unsigned n = 1; n < all.size; n++)
        pthread_join(ids[n], NULL);
    self = outer;
    pthread_mutex_destroy(&all.lock);
    pthread_barrier_destroy(&all.barrier);
    free(members);
    free(ids);
}

void GOMP_barrier(void)
{
    if (self.team)
        pthread_barrier_wait(&self.team->barrier);
}

bool GOMP_loop_nonmonotonic_dynamic_next(long *first, long *last)
{
    team *all = self.team;
    pthread_mutex_lock(&all->lock);
    const bool more = all->next < all->end;
    *first = all->next;
    all->next = all->end - all->next < all->step ? all->end : all->next + all->step;
    *last = all->next;
    pthread_mutex_unlock(&all->lock);
    return more;
}

/* `by` is positive, because Cython's loops count upwards by one. */
bool GOMP_loop_nonmonotonic_dynamic_start(long start, long end, long by, long chunk, long *first, long *last)
{
    team *all = self.team;
    pthread_mutex_lock(&all->lock);
    if (all->loops < ++self.loops) {
        all->loops = self.loops;
        all->next = start;
        all->end = end;
        all->step = chunk * by;
    }
    pthread_mutex_unlock(&all->lock);
    return GOMP_loop_nonmonotonic_dynamic_next(first, last);
}

void GOMP_loop_end_nowait(void) { GOMP_barrier(); }
