// Goroutines that are ready and do not run, for the run-time has one processor: receive is answered by one that then goes on
// computing three times as long as it had been waited for, compute and gather take turns with one that never waits, and give lets another
// one run of its own will. Pinned it computes on a processor that another process has now and then.
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
	"unsafe"
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

// Goes on as another program would, on one of the processors.
func pin(argument string) {
	runtime.LockOSThread()
	var allowed, one [128]uint64
	at := uintptr(unsafe.Pointer(&allowed))
	syscall.RawSyscall(syscall.SYS_SCHED_GETAFFINITY, 0, unsafe.Sizeof(allowed), at)
	for word, bits := range allowed {
		if bits != 0 {
			one[word] = bits & -bits
			break
		}
	}
	at = uintptr(unsafe.Pointer(&one))
	syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, 0, unsafe.Sizeof(one), at)
	panic(syscall.Exec("/proc/self/exe", []string{os.Args[0], argument}, os.Environ()))
}

func main() {
	runtime.GOMAXPROCS(1)
	switch os.Args[1] {
	case "pinned":
		pin("beside")
	case "beside":
		runtime.LockOSThread()
		rival := exec.Command("/proc/self/exe", "rival")
		rival.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := rival.Start(); err != nil {
			panic(err)
		}
		forever(func(n int) { compute(n) })
	case "rival":
		for {
			spin(20 * time.Millisecond)
			time.Sleep(20 * time.Millisecond)
		}
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
