// Again and again 3,000 goroutines exist at the same time, each of which has called `step` once; they end, and 50 others call it many
// times, until the input ends.
package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

//go:noinline
func step(n int) int {
	return pause(n) + 1
}

//go:noinline
func pause(n int) int {
	time.Sleep(time.Millisecond)
	return n
}

func together(count int, do func(n int)) {
	var all sync.WaitGroup
	all.Add(count)
	for n := 0; n < count; n++ {
		go func(n int) {
			do(n)
			all.Done()
		}(n)
	}
	all.Wait()
}

func main() {
	go func() {
		for {
			var reached sync.WaitGroup
			reached.Add(3000)
			together(3000, func(n int) {
				step(n)
				reached.Done()
				reached.Wait()
			})
			together(50, func(n int) {
				for round := 0; round < 60; round++ {
					n = step(n)
				}
			})
		}
	}()
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
	fmt.Println("wrong 0")
}
