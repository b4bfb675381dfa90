// Submits a job, streams one, and prints the reason of a refusal.
//
//	cd examples/go && go run . 127.0.0.1:7070
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	waterwheel "waterwheel.dev/go"
)

func run(address string) error {
	// It balances, checks health, and tries again when the server says that it may.
	pool, err := waterwheel.NewClient(address, waterwheel.Options{})
	if err != nil {
		return err
	}
	defer pool.Close()
	// The deadline is that of the whole job: queue, run and answer, over all tries.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()

	result, err := pool.Submit(ctx, &waterwheel.Job{Kind: "sha256", Payload: []byte("hello")})
	if err != nil {
		return err
	}
	fmt.Printf("%s by job %s\n", result.Output, result.JobId)

	work := &waterwheel.Job{Kind: "gzip", Payload: bytes.Repeat([]byte("hello "), 10_000)}
	for event, err := range pool.Stream(ctx, work) {
		switch {
		case err != nil:
			return err
		case event.Progress != nil:
			fmt.Println("progress", event.Progress.Fraction)
		case event.Finished != nil:
			fmt.Println("finished", event.Finished.OutputBytes)
		default:
			fmt.Println("output", len(event.Output))
		}
	}

	_, err = pool.Submit(ctx, &waterwheel.Job{Kind: "nothing"})
	var (
		refused *waterwheel.Refused
		missed  *waterwheel.Missed
		failed  *waterwheel.Failed
		lost    *waterwheel.Lost
	)
	switch {
	case errors.As(err, &refused): // It did not start.
		fmt.Println(refused.Reason, refused.Metadata, "retry after", refused.RetryAfter)
	case errors.As(err, &missed): // It did not end in time.
		fmt.Println("too late", missed.Reason)
	case errors.As(err, &failed): // Its handler says no.
		fmt.Println(failed.Code, failed.Message, failed.Stderr)
	case errors.As(err, &lost): // It may have had effects.
		fmt.Println("lost", lost.Reason, lost.Started)
	}
	return nil
}

func main() {
	if err := run(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}
