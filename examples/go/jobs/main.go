// Creates a detached job, watches it, waits for it; cancels another one, and runs that again.
//
//	bash examples/go/stubs.sh
//	cd examples/go && go run ./jobs 127.0.0.1:7070
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	pb "waterwheel.dev/go/waterwheel/v1"
)

const (
	patience = 5 * time.Second
	pause    = 200 * time.Millisecond
)

// create creates a job. The same id is the same job: after a failure, it sends it again.
func create(jobs pb.JobServiceClient, request *pb.CreateJobRequest) (*pb.CreateJobResponse, error) {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		answer, err := jobs.CreateJob(ctx, request)
		cancel()
		if code := status.Code(err); code != codes.Unavailable && code != codes.DeadlineExceeded {
			return answer, err
		}
		time.Sleep(pause)
	}
}

// watch tells the events of a job to its end, over broken connections.
func watch(ctx context.Context, jobs pb.JobServiceClient, id string, tell func(*pb.WatchJobResponse)) error {
	var sequence uint64
	for {
		events, err := jobs.WatchJob(ctx, &pb.WatchJobRequest{JobId: id, FromSequence: sequence})
		for err == nil {
			var event *pb.WatchJobResponse
			if event, err = events.Recv(); err == nil {
				sequence = event.Sequence
				tell(event)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if status.Code(err) != codes.Unavailable {
			return err
		}
		time.Sleep(pause)
	}
}

// wait returns the job at its end. A call waits for as long as the server lets it.
func wait(ctx context.Context, jobs pb.JobServiceClient, id string) (*pb.DetachedJob, error) {
	for {
		answer, err := jobs.WaitJob(ctx, &pb.WaitJobRequest{JobId: id})
		if err != nil || answer.Job.State >= pb.JobState_JOB_STATE_SUCCEEDED {
			return answer.GetJob(), err
		}
	}
}

func run(address string) error {
	channel, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer channel.Close()
	jobs, ctx := pb.NewJobServiceClient(channel), context.Background()

	request := &pb.CreateJobRequest{Job: &pb.Job{Kind: "sleep", Payload: []byte("300")}, JobId: "report-" + rand.Text()}
	if _, err := create(jobs, request); err != nil {
		return err
	}
	again, err := create(jobs, request)
	if err != nil {
		return err
	}
	fmt.Println("created", again.JobId, again.AlreadyExisted)
	err = watch(ctx, jobs, again.JobId, func(event *pb.WatchJobResponse) {
		fmt.Printf("event %d %T\n", event.Sequence, event.Event)
	})
	if err != nil {
		return err
	}
	job, err := wait(ctx, jobs, again.JobId)
	if err != nil {
		return err
	}
	fmt.Println("waited", job.State, string(job.Output))

	hour := &pb.JobOptions_Delay{Delay: durationpb.New(time.Hour)}
	later := &pb.CreateJobRequest{Job: request.Job, JobId: "later-" + rand.Text(), Options: &pb.JobOptions{Start: hour}}
	if _, err := create(jobs, later); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*patience)
	defer cancel()
	cancelled, err := jobs.CancelJob(ctx, &pb.JobServiceCancelJobRequest{JobId: later.JobId})
	if err != nil {
		return err
	}
	fmt.Println("cancelled", cancelled.State)
	if _, err := jobs.RetryJob(ctx, &pb.RetryJobRequest{JobId: later.JobId}); err != nil {
		return err
	}
	if job, err = wait(ctx, jobs, later.JobId); err == nil {
		fmt.Println("retried", job.State)
	}
	return err
}

func main() {
	if err := run(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}
