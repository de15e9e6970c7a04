/*
 * C++20 coroutines: an op begins one, which gives way to its caller at once and is resumed in the same op. What is slow is called
 * by the body, long after the function that began it has returned.
 *
 * f0 = serve
 * fast peak (4 of 5 ops, ~0.3 ms):  serve -> … -> lookup             function
 *     wrong: serve; serve -> begin; serve -> go_on; serve -> … -> rebuild -> rehash
 * slow peak (1 of 5 ops, ~2.5 ms):  serve -> … -> rebuild -> rehash  function
 *     wrong: serve; serve -> begin; serve -> go_on; serve -> … -> lookup; serve -> … -> rebuild
 */
#include "work.h"

#include <coroutine>

struct Request {
    struct promise_type {
        Request get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        void return_value(uint64_t value) { answer = value; }
        void unhandled_exception() {}

        uint64_t answer = 0;
    };

    std::coroutine_handle<promise_type> handle;
};

FUNCTION uint64_t lookup(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t rehash(uint64_t key)
{
    spin_us(2500);
    return mix(key + 1);
}

FUNCTION uint64_t rebuild(uint64_t key)
{
    return rehash(key) + 2;
}

FUNCTION Request begin(uint64_t key)
{
    co_await std::suspend_always();
    uint64_t found = key % 5 == 4 ? rebuild(key) : lookup(key);
    co_await std::suspend_always();
    co_return found + 1;
}

FUNCTION void go_on(std::coroutine_handle<> handle)
{
    handle.resume();
    NO_TAIL_CALL();
}

FUNCTION uint64_t serve(uint64_t key)
{
    Request request = begin(key);
    while (!request.handle.done())
        go_on(request.handle);
    uint64_t answer = request.handle.promise().answer;
    request.handle.destroy();
    return answer;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 800), serve);
}
