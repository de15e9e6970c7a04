// Goroutines that wait, each in a function and for a thing of its own, until its input ends.
package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

var (
	asked    = make(chan int)
	answered = make(chan int)
	ticks    = make(chan int)
	never    = make(chan int)
	lock     sync.Mutex
	held     int
)

//go:noinline
func receive(n int) int {
	asked <- n
	return <-answered
}

//go:noinline
func choose(n int) int {
	select {
	case m := <-ticks:
		return m + n
	case m := <-never:
		return m
	}
}

//go:noinline
func guarded(n int) int {
	lock.Lock()
	held += n
	lock.Unlock()
	return held
}

//go:noinline
func read(from *os.File, n int) int {
	var buffer [1]byte
	m, _ := from.Read(buffer[:])
	return n + m
}

type waiter interface {
	wait(n int) int
}

type sleeper struct{ duration time.Duration }

//go:noinline
func (s *sleeper) wait(n int) int {
	time.Sleep(s.duration)
	return n
}

//go:noinline
func through(w waiter, then func(int) int, n int) int {
	return then(w.wait(n))
}

func forever(do func(n int)) {
	go func() {
		for n := 0; ; n++ {
			do(n)
		}
	}()
}

func main() {
	const short = 2 * time.Millisecond
	forever(func(int) {
		n := <-asked
		time.Sleep(short)
		answered <- n
	})
	forever(func(n int) {
		time.Sleep(short)
		ticks <- n
	})
	forever(func(int) {
		lock.Lock()
		time.Sleep(short)
		lock.Unlock()
		time.Sleep(short / 4)
	})
	from, to, _ := os.Pipe()
	forever(func(int) {
		time.Sleep(short)
		to.Write([]byte{1})
	})
	var sum int
	then := func(n int) int { return sum + n }
	slow := &sleeper{short}
	forever(func(n int) { receive(n) })
	forever(func(n int) { choose(n) })
	forever(func(n int) { guarded(n); time.Sleep(short / 2) })
	forever(func(n int) { read(from, n) })
	forever(func(n int) { through(slow, then, n) })
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
	fmt.Println("wrong 0")
}
