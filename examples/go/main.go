// Submits a job, streams one, and prints the reason of a refusal.
//
//	bash examples/go/stubs.sh
//	cd examples/go && go run . 127.0.0.1:7070
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health" // The service config asks for health checks.
	"google.golang.org/grpc/status"
	pb "waterwheel.dev/go/waterwheel/v1"
)

func main() {
	config, err := os.ReadFile("../../deploy/service-config.json")
	if err != nil {
		log.Fatal(err)
	}
	// A channel that balances, checks health, and tries again when the server says that it may.
	channel, err := grpc.NewClient("passthrough:///"+os.Args[1],
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(string(config)))
	if err != nil {
		log.Fatal(err)
	}
	pool := pb.NewWorkerPoolServiceClient(channel)
	// The deadline is that of the whole job: queue, run and answer.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()

	job := &pb.Job{Kind: "sha256", Payload: []byte("hello")}
	answer, err := pool.Submit(ctx, &pb.SubmitRequest{Job: job})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s by job %s\n", answer.Result.Output, answer.Result.JobId)

	events, err := pool.Stream(ctx, &pb.StreamRequest{Job: &pb.Job{Kind: "gzip", Payload: bytes.Repeat([]byte("hello "), 10_000)}})
	for err == nil {
		var event *pb.StreamResponse
		if event, err = events.Recv(); err == nil {
			fmt.Printf("%d %T\n", event.Sequence, event.Event)
		}
	}
	if !errors.Is(err, io.EOF) {
		log.Fatal(err)
	}

	_, err = pool.Submit(ctx, &pb.SubmitRequest{Job: &pb.Job{Kind: "nothing"}})
	for _, detail := range status.Convert(err).Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			fmt.Println(detail.Reason, detail.Metadata)
		case *errdetails.RetryInfo:
			fmt.Println("retry after", detail.RetryDelay.AsDuration())
		}
	}
}
