package waterwheel_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	waterwheel "waterwheel.dev/go"
	"waterwheel.dev/go/worker"
)

// As many jobs wait as a batch has: each batch but the first and the last is full, and not half of it.
func TestBatchesAreRefilled(t *testing.T) {
	client, server := serve(t, far)
	batching := &worker.Worker{Slots: 8, Addresses: []string{server.address}}
	batching.Handle("do", func(context.Context, *worker.Job) ([]byte, string, error) { return nil, "", nil })
	batching.Batch("batch", 8, func(jobs []*worker.Job) ([]worker.Result, error) {
		time.Sleep(100 * time.Millisecond)
		results := make([]worker.Result, len(jobs))
		for number := range results {
			results[number].Output = strconv.AppendInt(nil, int64(len(jobs)), 10)
		}
		return results, nil
	})
	ctx, leave := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- batching.Run(ctx) }()
	all := make([]*waterwheel.Job, 160)
	for number := range all {
		all[number] = job("batch", "")
	}
	full := 0
	for outcome := range client.SubmitMany(within(t, patience), of(all...)) {
		if outcome.Err != nil {
			t.Fatal(outcome.Err)
		}
		if string(outcome.Result.Output) == "8" {
			full++
		}
	}
	if full < 32 {
		t.Errorf("only %d of 160 jobs were in full batches", full)
	}
	leave()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
