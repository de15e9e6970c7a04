// Serves requests in 64 goroutines until its input ends: some sleep, compute, let their stack grow, hand a value over, or panic.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"
)

type request struct {
	id   uint64
	kind int
}

//go:noinline
func parse(r *request) uint64 {
	x := r.id*2862933555777941757 + 3037000493
	n := 300
	if r.kind == 5 {
		n = 40000
	}
	for i := 0; i < n; i++ {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	if r.kind == 7 {
		panic("bad request")
	}
	return x
}

//go:noinline
func lookup(r *request) uint64 {
	if r.kind == 3 {
		time.Sleep(2 * time.Millisecond)
	} else if r.kind == 6 {
		c := make(chan uint64)
		go func() { c <- r.id }()
		return <-c
	}
	return r.id
}

//go:noinline
func deep(r *request, n int) uint64 {
	var buf [512]byte
	buf[n&511] = byte(n)
	if n == 0 {
		return uint64(buf[r.id&511])
	}
	return deep(r, n-1) + uint64(buf[0])
}

//go:noinline
func handle(r *request) uint64 {
	if r.kind == 7 {
		return guarded(r)
	}
	a := parse(r)
	b := lookup(r)
	var c uint64
	if r.kind == 2 {
		c = deep(r, 40)
	}
	if b&1 == 1 && c&1 == 1 {
		return a*3 + b + c
	}
	return a ^ b ^ c
}

//go:noinline
func guarded(r *request) (result uint64) {
	defer func() {
		if e := recover(); e != nil {
			result = 77
		}
	}()
	return parse(r)
}

// What handle returns, found without it.
func expected(r *request) uint64 {
	if r.kind == 7 {
		return 77
	}
	x := r.id*2862933555777941757 + 3037000493
	n := 300
	if r.kind == 5 {
		n = 40000
	}
	for i := 0; i < n; i++ {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	return x ^ r.id
}

func main() {
	pprof.StartCPUProfile(io.Discard)
	var next, wrong uint64
	var stop int32
	go func() {
		for {
			runtime.GC()
			time.Sleep(3 * time.Millisecond)
			b := make([]byte, 1<<16)
			runtime.Stack(b, true)
		}
	}()
	var all sync.WaitGroup
	for w := 0; w < 64; w++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for atomic.LoadInt32(&stop) == 0 {
				// A new goroutine with a small stack: it grows within requests.
				done := make(chan int)
				go func() {
					defer close(done)
					for i := 0; i < 32; i++ {
						id := atomic.AddUint64(&next, 1)
						r := &request{id, int(id % 8)}
						v := handle(r)
						if r.kind != 2 && v != expected(r) {
							atomic.AddUint64(&wrong, 1)
						}
						runtime.Gosched()
					}
					// Leaves its goroutine in the middle of things.
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
	pprof.StopCPUProfile()
	fmt.Println("served", next > 0, "wrong", wrong)
}
