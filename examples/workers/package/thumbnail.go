// A worker of waterwheel that serves the kind `thumbnail`, by the module waterwheel.dev/go.
//
//	waterwheel worker test --pass-env HOME -- go run thumbnail.go       checks that it keeps the protocol
//	waterwheel dev --worker thumbnail.go                                serves it, and starts it anew when it changes
//	go build thumbnail.go && WATERWHEEL_ADDRESS=HOST:PORT ./thumbnail   attaches it to a server whose kind is `remote`
//
// A signal to `go run` would not let the worker finish its jobs. Load what is slow to load (a model, a connection) in
// newWorker, once. It is kept from job to job.
package main

import (
	"context"
	"log"

	"waterwheel.dev/go/worker"
)

// run does one job: it returns the result and its content type. Long work ends once the context is done.
func run(ctx context.Context, job *worker.Job) ([]byte, string, error) {
	if len(job.Payload) == 0 {
		return nil, "", &worker.Failed{Code: "INVALID_ARGUMENT", Message: "the payload is empty"}
	}
	return job.Payload, job.ContentType, nil
}

// newWorker is what a test calls: newWorker().Test(ctx, &worker.Run{Kind: "thumbnail", Payload: data}).
func newWorker() *worker.Worker {
	its := &worker.Worker{Name: "thumbnail"}
	its.Handle("thumbnail", run)
	return its
}

func main() {
	if err := newWorker().Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
