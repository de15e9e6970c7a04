// Goroutines that are ready and do not run, for one processor has them all: receive is answered by one that then goes on
// computing three times as long as it had been waited for, compute and gather take turns with one that never waits, and give lets another
// one run of its own will.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"time"
)

var (
	asked    = make(chan int)
	answered = make(chan int)
)

//go:noinline
func spin(duration time.Duration) int {
	n := 0
	for begin := time.Now(); time.Since(begin) < duration; n++ {
	}
	return n
}

//go:noinline
func answer() {
	n := <-asked
	spin(time.Millisecond)
	answered <- n
	spin(3 * time.Millisecond)
}

//go:noinline
func receive(n int) int {
	asked <- n
	return <-answered
}

//go:noinline
func compute(n int) int {
	return scramble(n)
}

// Some two milliseconds.
//
//go:noinline
func scramble(n int) int {
	x := uint64(n) + 1
	for i := 0; i < 1200000; i++ {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	return int(x)
}

//go:noinline
func give(n int) int {
	runtime.Gosched()
	return n
}

// Waits more often than there are records of, and takes turns with one that never waits then.
//
//go:noinline
func gather(n int) int {
	for i := 0; i < 200; i++ {
		n += <-answered
	}
	for i := 0; i < 6; i++ {
		n += scramble(n)
	}
	return n
}

func forever(do func(n int)) {
	go func() {
		for n := 0; ; n++ {
			do(n)
		}
	}()
}

func main() {
	runtime.GOMAXPROCS(1)
	switch os.Args[1] {
	case "receive":
		forever(func(int) { answer() })
		forever(func(n int) { receive(n) })
	case "gather":
		forever(func(n int) { answered <- n })
		forever(func(int) { spin(time.Second) })
		forever(func(int) { spin(time.Second) })
		forever(func(n int) { gather(n) })
	case "compute":
		forever(func(int) { spin(time.Second) })
		forever(func(n int) { compute(n) })
	case "give":
		forever(func(int) { spin(time.Millisecond); runtime.Gosched() })
		forever(func(n int) { give(n) })
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
	fmt.Println("wrong 0")
}
