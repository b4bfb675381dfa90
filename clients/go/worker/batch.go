package worker

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// batch runs the jobs of one kind together: one batch at a time, of those that are there.
type batch struct {
	handler BatchHandler
	most    int
	begin   sync.Once
	// Each job waits in its goroutine for a place in the next batch.
	came chan *Job
}

func (batch *batch) add(job *Job) {
	batch.begin.Do(func() { go batch.loop(job.session.worker) })
	batch.came <- job
}

// loop runs batches until the program ends.
func (batch *batch) loop(worker *Worker) {
	// The jobs of a full batch, as far as a server gives so many.
	places := batch.most
	if slots := cap(worker.slots); slots > 0 {
		places = min(places, slots)
	}
	// How many jobs the worker had at once: it does not know how many it may get.
	most := places
	for next := []*Job(nil); ; {
		if len(next) == 0 {
			next = append(next, <-batch.came)
		}
		jobs := batch.gather(next, batch.most, 0)
		began := time.Now()
		results, err := batch.run(jobs)
		took, patience := time.Since(began), time.Duration(0)
		next = batch.gather(nil, batch.most, 0)
		held := len(slices.DeleteFunc(slices.Concat(jobs, next), (*Job).Cancelled))
		most = max(most, held)
		// While all places were taken, those who wait are about to come: without a pause for them, batches would halve.
		if held >= most {
			patience = took / 20
		}
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
		next = batch.gather(next, places, patience)
	}
}

// gather adds the jobs that are there, and those that come within the time, until there are so many. It leaves out
// those that are cancelled, and so answered.
func (batch *batch) gather(jobs []*Job, most int, patience time.Duration) []*Job {
	for end := time.After(patience); len(jobs) < most; {
		select {
		case job := <-batch.came:
			jobs = append(jobs, job)
			continue
		default:
		}
		select {
		case job := <-batch.came:
			jobs = append(jobs, job)
		case <-end:
			most = 0
		}
	}
	return slices.DeleteFunc(jobs, (*Job).Cancelled)
}

// run is in a goroutine of its own, which the handler may end.
func (batch *batch) run(jobs []*Job) (results []Result, err error) {
	if len(jobs) == 0 {
		return nil, nil
	}
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
