// Serves requests in 64 goroutines until its input ends, with the help of C code: some have it compute or sleep, some are called back by
// it, which grows the stack, lets others run or panics. Threads that C code has made call Go code, too, and end. What a request does is
// told by an argument, or all in turn.
package main

/*
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

extern uint64_t fromC(uint64_t, uint64_t);

__attribute__((noinline)) static uint64_t scramble(uint64_t x, int n) {
	for (int i = 0; i < n; i++) { x ^= x << 13; x ^= x >> 7; x ^= x << 17; }
	return x;
}
static void pause_for(long ns) {
	struct timespec t = {0, ns};
	nanosleep(&t, NULL);
}
static uint64_t back(uint64_t id, uint64_t kind) { return fromC(id, kind); }

// Threads of C's: each calls back some times and ends.
static volatile int stop;
static void *calls(void *argument) {
	uint64_t wrong = 0;
	for (uint64_t i = 0; i < 20 && !stop; i++) wrong += fromC(i, i % 4) != i;
	return (void *)(uintptr_t)wrong;
}
static uint64_t threads(void) {
	uint64_t wrong = 0;
	pthread_t all[4];
	for (int i = 0; i < 4; i++) if (pthread_create(&all[i], NULL, calls, NULL)) abort();
	for (int i = 0; i < 4; i++) { void *result; pthread_join(all[i], &result); wrong += (uintptr_t)result; }
	return wrong;
}
*/
import "C"

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"
)

//go:noinline
func deep(x uint64, n int) uint64 {
	var buf [512]byte
	buf[n&511] = byte(n)
	if n == 0 {
		return x + uint64(buf[1])
	}
	return deep(x, n-1) + uint64(buf[0])&0
}

// What C code calls.
//
//go:noinline
func serve(id, kind uint64) uint64 {
	var room [256]byte // A frame for which no short instruction will do.
	room[id&127] = 1
	id += uint64(room[128])
	switch kind {
	case 1:
		return deep(id, 40)
	case 2:
		runtime.Gosched()
	case 3:
		time.Sleep(50 * time.Microsecond)
	case 5:
		panic("called back")
	}
	return id
}

//export fromC
func fromC(id, kind C.uint64_t) C.uint64_t {
	return C.uint64_t(serve(uint64(id), uint64(kind)))
}

//go:noinline
func compute(x uint64, n int) uint64 { return uint64(C.scramble(C.uint64_t(x), C.int(n))) }

//go:noinline
func sleep(ns int) { C.pause_for(C.long(ns)) }

//go:noinline
func back(id, kind uint64) uint64 { return uint64(C.back(C.uint64_t(id), C.uint64_t(kind))) }

//go:noinline
func guarded(id uint64) (result uint64) {
	defer func() {
		if recover() != nil {
			result = id
		}
	}()
	return back(id, 5)
}

// Returns its argument.
//
//go:noinline
func handle(id uint64, kind int) uint64 {
	var room [256]byte // A frame for which no short instruction will do.
	room[id&127] = 1
	x := compute(id+uint64(room[128]), 10)
	switch kind {
	case 1:
		compute(x, 20000)
	case 9:
		compute(x, 1000000)
	case 2:
		sleep(3000000)
	case 3:
		return guarded(id)
	case 4, 5, 6, 7:
		return back(id, uint64(kind-4))
	}
	return unscramble(x)
}

func unscramble(x uint64) uint64 {
	for i := 0; i < 10; i++ {
		x ^= x<<17 ^ x<<34 ^ x<<51
		x ^= x>>7 ^ x>>14 ^ x>>21 ^ x>>28 ^ x>>35 ^ x>>42 ^ x>>49 ^ x>>56 ^ x>>63
		x ^= x<<13 ^ x<<26 ^ x<<39 ^ x<<52
	}
	return x
}

func main() {
	only := map[string]int{"compute": 9, "sleep": 2}
	slow, alone := 0, false
	if len(os.Args) > 1 {
		slow, alone = only[os.Args[1]], true
	}
	pprof.StartCPUProfile(io.Discard)
	var next, wrong uint64
	var stop int32
	var others sync.WaitGroup
	if !alone {
		others.Add(1)
		go func() {
			defer others.Done()
			for atomic.LoadInt32(&stop) == 0 {
				runtime.GC()
				time.Sleep(3 * time.Millisecond)
				b := make([]byte, 1<<16)
				runtime.Stack(b, true)
				atomic.AddUint64(&wrong, uint64(C.threads()))
				net.LookupHost("localhost")
				if exec.Command("/bin/true").Run() != nil {
					atomic.AddUint64(&wrong, 1)
				}
			}
		}()
	}
	var all sync.WaitGroup
	goroutines := 64
	if alone {
		goroutines = 2
	}
	for w := 0; w < goroutines; w++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for atomic.LoadInt32(&stop) == 0 {
				done := make(chan int)
				go func() {
					defer close(done)
					for i := 0; i < 32; i++ {
						id := atomic.AddUint64(&next, 1)
						kind := int(id % 8)
						if alone {
							if kind != 0 {
								kind = 8
							} else {
								kind = slow
							}
						}
						if handle(id, kind) != id {
							atomic.AddUint64(&wrong, 1)
						}
						runtime.Gosched()
					}
					runtime.Goexit()
				}()
				<-done
			}
		}()
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
	atomic.StoreInt32(&stop, 1)
	all.Wait()
	others.Wait()
	pprof.StopCPUProfile()
	fmt.Println("served", next > 0, "wrong", wrong)
}
