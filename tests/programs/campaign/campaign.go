// Handles requests in 64 goroutines until its input ends. Every eighth is slow for the reason that it is started with:
// park, cpu, stack, channel, mutex, gc, or each of these in turn (all). It keeps its own clock: with a file as second argument
// it writes when each of the last requests began and ended, by the cycle counter.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"
)

const (
	quick = iota
	park
	cpu
	stack
	channel
	mutex
	gc
	panics
)

var reasons = map[string]int{"park": park, "cpu": cpu, "stack": stack, "channel": channel, "mutex": mutex, "gc": gc}

// The cycle counter, when all before it is done.
func cycles() uint64

type node struct {
	next *node
	id   uint64
	more [6]*node
}

var (
	asked = make(chan chan uint64, 64)
	lock  sync.Mutex
	live  *node
	wrong uint64
	stop  int32
)

//go:noinline
func scramble(id uint64, times int) uint64 {
	x := id*2862933555777941757 + 3037000493
	for i := 0; i < times; i++ {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	return x
}

//go:noinline
func parse(id uint64, kind int) uint64 {
	if kind == cpu {
		return scramble(id, 40000)
	}
	return scramble(id, 200)
}

//go:noinline
func pause(id uint64) uint64 {
	time.Sleep(2 * time.Millisecond)
	return id
}

//go:noinline
func ask(id uint64) uint64 {
	answer := make(chan uint64)
	asked <- answer
	return id + <-answer
}

//go:noinline
func guard(id uint64) uint64 {
	lock.Lock()
	defer lock.Unlock()
	return id
}

// Its frame is the first that does not fit.
//
//go:noinline
func grow(id uint64) uint64 {
	var words [16 << 10]uint64
	fill(&words, id)
	return words[id&1023]
}

//go:noinline
func fill(words *[16 << 10]uint64, id uint64) {
	words[id&1023] = id
}

//go:noinline
func build(id uint64) uint64 {
	nodes := make([]node, 3000)
	nodes[id%3000].id = id
	return nodes[id%3000].id
}

//go:noinline
func fail(id uint64) (result uint64) {
	defer func() {
		if recover() != nil {
			result = id
		}
	}()
	panic("bad request")
}

//go:noinline
func handle(id uint64, kind int, own *span) uint64 {
	own.begin = cycles()
	a := parse(id, kind)
	b := id
	switch kind {
	case park:
		b = pause(id)
	case channel:
		b = ask(id)
	case mutex:
		b = guard(id)
	case stack:
		b = grow(id)
	case gc:
		b = build(id)
	case panics:
		b = fail(id)
	}
	own.end = cycles()
	return a ^ b
}

func expected(id uint64, kind int) uint64 {
	times := 200
	if kind == cpu {
		times = 40000
	}
	return scramble(id, times) ^ id
}

type span struct{ id, begin, end uint64 }

type log struct {
	spans []span
	next  int
}

func (l *log) add(s span) {
	if len(l.spans) < cap(l.spans) {
		l.spans = append(l.spans, s)
	} else if len(l.spans) > 0 {
		l.spans[l.next%len(l.spans)] = s
		l.next++
	}
}

func serve(id uint64, kind int, l *log) {
	own := span{id: id}
	v := handle(id, kind, &own)
	l.add(own)
	if v != expected(id, kind) {
		atomic.AddUint64(&wrong, 1)
	}
}

// So many frames have to be moved when the stack grows.
//
//go:noinline
func deep(n int, then func()) int {
	if n == 0 {
		then()
		return 0
	}
	return deep(n-1, then) + 1
}

func work(kind func(id uint64) int, next *uint64, l *log) {
	for atomic.LoadInt32(&stop) == 0 {
		done := make(chan int)
		go func() {
			defer close(done)
			for i := 0; i < 32; i++ {
				id := atomic.AddUint64(next, 1)
				switch kind := kind(id); kind {
				case stack:
					finished := make(chan int)
					go func() {
						deep(1500, func() { serve(id, stack, l) })
						close(finished)
					}()
					<-finished
				default:
					serve(id, kind, l)
				}
				time.Sleep(100 * time.Microsecond)
			}
			// Leaves its goroutine in the middle of things.
			runtime.Goexit()
		}()
		<-done
	}
}

func chosen(reason string) func(id uint64) int {
	if reason == "all" {
		return func(id uint64) int {
			if id%8 != 0 {
				return quick
			}
			return 1 + int(id/8%7)
		}
	}
	slow := reasons[reason]
	return func(id uint64) int {
		if id%8 != 0 {
			return quick
		}
		return slow
	}
}

func surroundings(reason string) {
	go func() {
		for answer := range asked {
			go func(answer chan uint64) {
				time.Sleep(2 * time.Millisecond)
				answer <- 0
			}(answer)
		}
	}()
	if reason == "mutex" || reason == "all" {
		go func() {
			for {
				lock.Lock()
				time.Sleep(2 * time.Millisecond)
				lock.Unlock()
				time.Sleep(500 * time.Microsecond)
			}
		}()
	}
	if reason == "gc" {
		// To be marked by whoever allocates.
		for i := 0; i < 300000; i++ {
			live = &node{next: live}
			for j := range live.more {
				live.more[j] = live.next
			}
		}
	} else {
		go func() {
			for {
				runtime.GC()
				time.Sleep(3 * time.Millisecond)
				b := make([]byte, 1<<16)
				runtime.Stack(b, true)
			}
		}()
	}
}

func main() {
	debug.SetGCPercent(5)
	pprof.StartCPUProfile(io.Discard)
	reason := os.Args[1]
	surroundings(reason)
	workers := 64
	if reason == "cpu" || reason == "gc" {
		// As many as can run beside the others.
		workers = 4
	}
	var next uint64
	logs := make([]log, workers)
	var all sync.WaitGroup
	for w := range logs {
		l := &logs[w]
		if len(os.Args) > 2 {
			l.spans = make([]span, 0, 1<<16)
		}
		all.Add(1)
		go func() {
			defer all.Done()
			work(chosen(reason), &next, l)
		}()
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
	atomic.StoreInt32(&stop, 1)
	all.Wait()
	pprof.StopCPUProfile()
	if len(os.Args) > 2 {
		file, _ := os.Create(os.Args[2])
		w := bufio.NewWriter(file)
		for _, l := range logs {
			for _, s := range l.spans {
				fmt.Fprintln(w, s.id, s.begin, s.end)
			}
		}
		w.Flush()
		file.Close()
	}
	fmt.Println("served", next, "wrong", wrong)
}
