// Functions whose time ends at the edge of what Go compiles: where the collector's write barriers are, and in a system call; and
// functions of which no call is seen to return, for it goes on, or was put into another one.
// They work until the input ends, for which `main` waits without a thread.
package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

type node struct{ next, other *node }

//go:noinline
func keep(n *node) int {
	return store(n) + 1
}

// Some two milliseconds, with pointers to the heap that are written now and then.
//
//go:noinline
func store(n *node) int {
	x := uint64(1)
	for i := 0; i < 1200000; i++ {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		if x&0xffff == 0 {
			n.next, n.other = n.other, n.next
		}
	}
	return int(x)
}

// Much at once, so that most of the time is in the kernel.
//
//go:noinline
func save(file *os.File, bytes []byte) int {
	n, _ := file.WriteAt(bytes, 0)
	return n
}

//go:noinline
func work(n *node, some []byte) {
	for round := range rounds {
		some[uint(round)%100] = byte(keep(n))
	}
}

var rounds = make(chan int)

// It waits for as long as the program runs.
//
//go:noinline
func serve(requests chan int) int {
	sum := 0
	for n := range requests {
		sum += keep(&node{}) + n
	}
	return sum
}

type getter interface{ get() int }

type value struct{ first, second int }

func (v value) get() int {
	time.Sleep(time.Millisecond)
	return v.first
}

//go:noinline
func through(g getter) int { return g.get() + 1 }

func forever(do func()) {
	go func() {
		for {
			do()
		}
	}()
}

func main() {
	switch os.Args[1] {
	case "keep":
		n := &node{&node{}, &node{}}
		forever(func() { keep(n) })
	case "work":
		forever(func() { rounds <- 1 })
		go work(&node{&node{}, &node{}}, make([]byte, 200))
	case "value.get":
		forever(func() { through(value{len(os.Args), 2}) })
	case "serve":
		go serve(make(chan int))
	case "save":
		file, err := os.CreateTemp("", "endings")
		if err != nil {
			panic(err)
		}
		os.Remove(file.Name())
		bytes := make([]byte, 8<<20)
		forever(func() { save(file, bytes) })
	}
	fmt.Println("ready")
	ended := make(chan int)
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	<-ended
	fmt.Println("wrong 0")
}
