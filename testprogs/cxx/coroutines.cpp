/*
 * Coroutines of C++20 that two threads resume. Most of them do a little work and end; others are slow, each kind for a reason of its
 * own, or are destroyed before they end.
 *
 * f0 = serve(unsigned long), a coroutine: an op is its life
 * kinds 1 and 2, a fifth of a ms and more: the co_await at the line marked FIRST, of another coroutine that waits
 *     wrong: serve itself, what it calls
 * kind 3, some 60 ms: the co_await at the line marked SECOND, which stands in a loop
 *     wrong: as above
 * kind 4, some 2 ms: works in parse
 *     wrong: the waits
 * kind 5: destroyed while it waits at another co_await
 * all others, some 30 µs: prepare
 *
 * Arguments: how many coroutines there are, or "wait": until something comes on the input; and "detached" (the last suspension suspends
 * nothing, so that a coroutine ends by itself) or "owned" (it is destroyed by its owner when it has ended). Then the number of
 * coroutines that returned and were destroyed before, and the sum of the lives of the former in ns, by its own clock, are printed.
 */
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <coroutine>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <unistd.h>
#include <vector>
#include <x86intrin.h>

#define FUNCTION __attribute__((noinline, noclone))

constexpr uint64_t KINDS = 16;

using Clock = std::chrono::steady_clock;
using Handle = std::coroutine_handle<>;

static std::atomic<uint64_t> returned, destroyed, lives;

/* Works for about so many microseconds of a counter of 2.3 GHz, without a call. */
static inline __attribute__((always_inline)) void work(uint64_t us)
{
    uint64_t start = __rdtsc();
    while (__rdtsc() - start < us * 2300) {
    }
}

FUNCTION void prepare(uint64_t us)
{
    work(us);
}

FUNCTION void parse(uint64_t us)
{
    work(us);
}

/* What can be resumed, and by whom it is to be destroyed instead. */
struct Ready {
    Handle handle;
    bool dies;
};

/* What has ended on this thread and waits to be destroyed. */
static thread_local Handle over;

static std::mutex lock;
static std::condition_variable more;
static std::deque<Ready> queue;
static std::vector<std::pair<Clock::time_point, Ready>> timers;

static void push(Ready ready)
{
    std::lock_guard<std::mutex> guard(lock);
    queue.push_back(ready);
    more.notify_one();
}

static void run()
{
    for (;;) {
        std::unique_lock<std::mutex> guard(lock);
        more.wait(guard, [] { return !queue.empty(); });
        Ready ready = queue.front();
        queue.pop_front();
        guard.unlock();
        if (ready.dies) {
            ready.handle.destroy();
            destroyed++;
        } else {
            ready.handle.resume();
            if (over) {
                over.destroy();
                over = nullptr;
            }
        }
    }
}

/* Resumes what waits for a time, every 100 µs. */
static void watch_timers()
{
    for (;;) {
        usleep(100);
        auto now = Clock::now();
        std::vector<Ready> due;
        {
            std::lock_guard<std::mutex> guard(lock);
            for (size_t i = 0; i < timers.size();) {
                if (timers[i].first > now) {
                    i++;
                    continue;
                }
                due.push_back(timers[i].second);
                timers[i] = timers.back();
                timers.pop_back();
            }
        }
        for (Ready ready : due)
            push(ready);
    }
}

/* Resumed after so many microseconds; at once, when there are none. */
struct After {
    uint64_t us;
    bool await_ready() const { return us == 0; }
    void await_suspend(Handle handle) const
    {
        auto at = Clock::now() + std::chrono::microseconds(us);
        std::lock_guard<std::mutex> guard(lock);
        timers.push_back({at, {handle, false}});
    }
    void await_resume() const {}
};

/* A coroutine that another one awaits: control goes from one to the other and back. */
struct Part {
    struct promise_type {
        Part get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
        std::suspend_always initial_suspend() noexcept { return {}; }
        struct Back {
            bool await_ready() noexcept { return false; }
            Handle await_suspend(std::coroutine_handle<promise_type> ended) noexcept { return ended.promise().next; }
            void await_resume() noexcept {}
        };
        Back final_suspend() noexcept { return {}; }
        void return_value(uint64_t given) { value = given; }
        void unhandled_exception() { std::terminate(); }

        uint64_t value = 0;
        Handle next;
    };

    std::coroutine_handle<promise_type> handle;

    bool await_ready() const { return false; }
    Handle await_suspend(Handle next) const
    {
        handle.promise().next = next;
        return handle;
    }
    uint64_t await_resume() const
    {
        uint64_t value = handle.promise().value;
        handle.destroy();
        return value;
    }
};

static bool is_owned;

/* When it is begun an executor's thread resumes it. It ends by itself, or is destroyed when it has ended. */
struct Served {
    struct promise_type {
        Served get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
        std::suspend_always initial_suspend() noexcept { return {}; }
        struct End {
            bool await_ready() noexcept { return !is_owned; }
            void await_suspend(Handle ended) noexcept { over = ended; }
            void await_resume() noexcept {}
        };
        End final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { std::terminate(); }
    };

    Handle handle;
};

FUNCTION Part read(uint64_t us)
{
    co_await After{us};
    co_return us;
}

/* Destroyed instead of being resumed, unless it is ready. */
struct Doomed {
    bool is_ready;
    bool await_ready() const { return is_ready; }
    void await_suspend(Handle handle) const
    {
        auto at = Clock::now() + std::chrono::microseconds(1000);
        std::lock_guard<std::mutex> guard(lock);
        timers.push_back({at, {handle, true}});
    }
    void await_resume() const {}
};

FUNCTION Served serve(uint64_t number)
{
    auto begin = Clock::now();
    uint64_t kind = number % KINDS;
    prepare(30);
    co_await Doomed{kind != 5};
    uint64_t took = co_await read(kind == 1 || kind == 2 ? 200 : 0); // FIRST
    if (kind == 4)
        parse(2000);
    for (int i = 0; i < 2; i++)
        co_await After{kind == 3 ? 30000u + took : 0}; // SECOND
    lives += std::chrono::nanoseconds(Clock::now() - begin).count();
    returned++;
}

static std::atomic<bool> ended;

int main(int, char **argv)
{
    bool waits = !strcmp(argv[1], "wait");
    uint64_t most = waits ? UINT64_MAX : strtoull(argv[1], nullptr, 10);
    is_owned = !strcmp(argv[2], "owned");
    std::thread(watch_timers).detach();
    std::thread(run).detach();
    std::thread(run).detach();
    if (waits) {
        puts("ready");
        fflush(stdout);
        std::thread([] {
            char byte;
            ended = read(0, &byte, 1) >= 0;
        }).detach();
    }
    uint64_t number = 0;
    for (; number < most && !ended; number++) {
        push({serve(number).handle, false});
        usleep(300);
    }
    while (returned + destroyed < number)
        usleep(1000);
    usleep(10000);
    printf("%lu %lu %lu\n", returned.load(), destroyed.load(), lives.load());
    fflush(stdout);
    _exit(0);
}
