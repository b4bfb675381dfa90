// Runs jobs with another queue, and prints the measurements as a line of JSON:
//
//	queues river URL JOBS SECONDS
//	queues faktory PROGRAM JOBS SECONDS
package main

import (
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Number of callers that create jobs one by one.
const singles = 32

type queue interface {
	// The fastest number of callers that create jobs in batches, and the size of a batch.
	batches() (callers, size int)
	many(payloads []string)
	one(payload string)
	// Waits until this number of further jobs has ended.
	ended(jobs int)
}

// Times from just before a job was created to the start of its work.
var waits struct {
	sync.Mutex
	all []time.Duration
}

// A payload of 16 bytes holds the time when its job was created.
func payload() string { return strconv.FormatInt(time.Now().UnixMicro(), 10) }

func started(payload string) {
	wait := time.Since(time.UnixMicro(must(strconv.ParseInt(payload, 10, 64))))
	waits.Lock()
	waits.all = append(waits.all, wait)
	waits.Unlock()
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// Splits numbers below `jobs` among concurrent callers.
func each(callers, step, jobs int, call func(number int)) {
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for number := caller * step; number < jobs; number += callers * step {
				call(number)
			}
		})
	}
	all.Wait()
}

func main() {
	jobs, seconds := must(strconv.Atoi(os.Args[3])), must(strconv.ParseFloat(os.Args[4], 64))
	// The libraries log to standard output, which is reserved for the line of JSON.
	stdout := os.Stdout
	os.Stdout = os.Stderr
	var queue queue
	switch os.Args[1] {
	case "river":
		queue = newRiver(os.Args[2])
	case "faktory":
		faktory := newFaktory(os.Args[2])
		defer faktory.stop()
		queue = faktory
	}
	callers, size := queue.batches()
	start := time.Now()
	each(callers, size, jobs, func(first int) {
		payloads := make([]string, min(size, jobs-first))
		for i := range payloads {
			payloads[i] = payload()
		}
		queue.many(payloads)
	})
	accepted := time.Since(start).Seconds()
	queue.ended(jobs)
	elapsed := time.Since(start).Seconds()

	waits.all = nil
	rate := float64(jobs) / elapsed / 2
	timed := int(rate * seconds)
	start = time.Now()
	each(singles, 1, timed, func(number int) {
		time.Sleep(time.Until(start.Add(time.Duration(float64(number) / rate * float64(time.Second)))))
		queue.one(payload())
	})
	queue.ended(timed)
	slices.Sort(waits.all)
	at := func(percent int) float64 { return waits.all[timed*percent/100].Seconds() * 1e3 }
	must(0, json.NewEncoder(stdout).Encode(map[string]any{
		"jobs": jobs, "accepted_seconds": accepted, "ended_seconds": elapsed, "p50_ms": at(50), "p99_ms": at(99),
	}))
}
