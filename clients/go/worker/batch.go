package worker

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// batch runs the jobs of one kind together: one batch at a time, of those that are there.
type batch struct {
	worker  *Worker
	handler BatchHandler
	most    int
	mutex   sync.Mutex
	waiting []*Job
	isBusy  bool
	// Has a value after a job came.
	came chan struct{}
}

// add runs batches until none waits, if no other goroutine does.
func (batch *batch) add(job *Job) {
	batch.mutex.Lock()
	isBusy := batch.isBusy
	batch.isBusy = true
	batch.waiting = append(batch.waiting, job)
	batch.mutex.Unlock()
	select {
	case batch.came <- struct{}{}:
	default:
	}
	if isBusy {
		return
	}
	for jobs := batch.take(); len(jobs) > 0; jobs = batch.take() {
		began := time.Now()
		results, err := batch.run(jobs)
		// While all places were taken, those who wait are about to come: without a pause for them, batches would halve.
		isFull := len(jobs)+batch.count() >= batch.places()
		took := time.Since(began)
		for number, job := range jobs {
			result := Result{Err: err}
			if err == nil {
				result = results[number]
			}
			if len(result.Output) > piece {
				// Its caller may be slow to read it, and holds up no other job.
				go job.answer(result.Output, result.ContentType, result.Err)
			} else {
				job.answer(result.Output, result.ContentType, result.Err)
			}
		}
		if isFull {
			batch.refill(took / 20)
		}
	}
}

// take leaves out the jobs that are cancelled, and so answered. If none is left, the next one to come begins again.
func (batch *batch) take() (jobs []*Job) {
	batch.mutex.Lock()
	defer batch.mutex.Unlock()
	for len(batch.waiting) > 0 && len(jobs) < batch.most {
		if job := batch.waiting[0]; !job.Cancelled() {
			jobs = append(jobs, job)
		}
		batch.waiting = batch.waiting[1:]
	}
	batch.isBusy = len(jobs) > 0
	return jobs
}

// run is in a goroutine of its own, which the handler may end.
func (batch *batch) run(jobs []*Job) (results []Result, err error) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = errors.New("the handler ended its goroutine")
		defer recovered(&err)
		results, err = batch.handler(jobs)
	}()
	<-ended
	if err == nil && len(results) != len(jobs) {
		err = fmt.Errorf("the handler returned %d results for %d jobs", len(results), len(jobs))
	}
	return results, err
}

func (batch *batch) count() int {
	batch.mutex.Lock()
	defer batch.mutex.Unlock()
	return len(batch.waiting)
}

// places are the jobs of a full batch, as far as a server gives so many.
func (batch *batch) places() int {
	if slots := cap(batch.worker.slots); slots > 0 {
		return min(batch.most, slots)
	}
	return batch.most
}

// refill waits until a batch is full again.
func (batch *batch) refill(most time.Duration) {
	for end := time.After(most); batch.count() < batch.places(); {
		select {
		case <-batch.came:
		case <-end:
			return
		}
	}
}
