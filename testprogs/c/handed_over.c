/*
 * Requests that another thread serves: f0 hands one over and waits for it. Some wait long in the queue, because the
 * thread that serves is busy with something else; with others the service takes long.
 *
 * f0 = submit, enqueue=enqueue:arg2, serve=serve:*(arg1+8)
 * hand-over:    fast (9 of 10) below 0.5 ms, slow (1 of 10) ~2.5 ms: tidy_up before the queue is looked at
 * serving:      fast peak (9 of 10, ~0.3 ms): serve -> look_up      function
 *               slow peak (1 of 10, ~10 ms):  serve -> seek         function
 * As many requests come from elsewhere (from background), and are served by serve_elsewhere of 0.1 ms, which is in
 * neither of serve's peaks.
 */
#include "work.h"

#include <pthread.h>
#include <semaphore.h>

struct request {
    uint64_t key;
    uint64_t result;
    int from_background;
    sem_t done;
};

struct queue {
    struct request *waiting[4];
    unsigned head, tail;
    sem_t available;
};

/* What serve gets: the request is eight bytes behind its beginning. */
struct job {
    uint64_t number;
    struct request *request;
};

static struct queue queue;
static struct request requests[PERIOD], private_request;

FUNCTION void tidy_up(void)
{
    spin_us(2500);
    NO_TAIL_CALL();
}

FUNCTION uint64_t look_up(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t seek(uint64_t key)
{
    spin_us(10000);
    return mix(key) + 1;
}

FUNCTION uint64_t serve_elsewhere(uint64_t key)
{
    spin_us(100);
    return mix(key) + 2;
}

FUNCTION void serve(struct job *job)
{
    struct request *request = job->request;
    if (request->from_background)
        request->result = serve_elsewhere(request->key);
    else if (request->key % 10 == 9)
        request->result = seek(request->key);
    else
        request->result = look_up(request->key);
    sem_post(&request->done);
}

static void *server(void *unused)
{
    struct job job = {0, NULL};
    (void)unused;
    for (;;) {
        while (sem_wait(&queue.available) != 0)
            ;
        job.request = queue.waiting[queue.tail++ % 4];
        if (!job.request->from_background && job.request->key % 10 == 4)
            tidy_up();
        job.number++;
        serve(&job);
    }
    return NULL;
}

FUNCTION void enqueue(struct queue *to, struct request *request)
{
    to->waiting[to->head++ % 4] = request;
    sem_post(&to->available);
    NO_TAIL_CALL();
}

FUNCTION void wait_for(struct request *request)
{
    while (sem_wait(&request->done) != 0)
        ;
}

FUNCTION uint64_t submit(uint64_t key)
{
    struct request *request = &requests[key];
    request->key = key;
    enqueue(&queue, request);
    wait_for(request);
    return request->result;
}

FUNCTION uint64_t background(uint64_t key)
{
    private_request.key = key + 100;
    private_request.from_background = 1;
    enqueue(&queue, &private_request);
    wait_for(&private_request);
    return private_request.result;
}

static uint64_t op(uint64_t key)
{
    return submit(key) ^ background(key);
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 400);
    sem_init(&queue.available, 0, 0);
    sem_init(&private_request.done, 0, 0);
    for (int i = 0; i < PERIOD; i++)
        sem_init(&requests[i].done, 0, 0);
    pthread_t thread;
    if (pthread_create(&thread, NULL, server, NULL) != 0)
        return 2;
    return run_ops(run, op);
}
