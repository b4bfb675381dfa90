// Creates a detached job, watches it, waits for it; cancels another one, and runs that again.
//
//	cd examples/go && go run ./jobs 127.0.0.1:7070
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log"
	"os"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	waterwheel "waterwheel.dev/go"
	pb "waterwheel.dev/go/waterwheel/v1"
)

func run(address string) error {
	pool, err := waterwheel.NewClient(address, waterwheel.Options{})
	if err != nil {
		return err
	}
	defer pool.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	work, id := &waterwheel.Job{Kind: "sleep", Payload: []byte("300")}, "report-"+rand.Text()
	if _, err := pool.Create(ctx, id, work, nil); err != nil {
		return err
	}
	// The same id is the same job.
	again, err := pool.Create(ctx, id, work, nil)
	if err != nil {
		return err
	}
	fmt.Println("created", again.ID, again.AlreadyExisted)
	for event, err := range again.Watch(ctx) {
		if err != nil {
			return err
		}
		fmt.Printf("event %d %T\n", event.Sequence, event.Event)
	}
	job, err := again.Wait(ctx)
	if err != nil {
		return err
	}
	fmt.Println("waited", job.State, string(job.Output))

	hour := &pb.JobOptions_Delay{Delay: durationpb.New(time.Hour)}
	later, err := pool.Create(ctx, "later-"+rand.Text(), work, &waterwheel.JobOptions{Start: hour})
	if err != nil {
		return err
	}
	state, err := later.Cancel(ctx)
	if err != nil {
		return err
	}
	fmt.Println("cancelled", state)
	// For what the client has no method for, there are the stubs.
	jobs := pb.NewJobServiceClient(pool.Connection())
	if _, err := jobs.RetryJob(ctx, &pb.RetryJobRequest{JobId: later.ID}); err != nil {
		return err
	}
	if job, err = later.Wait(ctx); err == nil {
		fmt.Println("retried", job.State)
	}
	return err
}

func main() {
	if err := run(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}
