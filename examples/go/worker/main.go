// A worker that runs jobs of the kind `thumbnail`: as a child of a server, or attached to servers from anywhere.
//
//	cd examples/go && go run ./worker 127.0.0.1:7070 [ADDRESS...]
//
// Load what is slow to load (a model, a connection) in main, once. It is kept from job to job.
package main

import (
	"context"
	"log"
	"os"

	"waterwheel.dev/go/worker"
)

func main() {
	thumbnails := &worker.Worker{Name: "thumbnail", Addresses: os.Args[1:]}
	// Does one job: returns the result and its content type.
	thumbnails.Handle("thumbnail", func(ctx context.Context, job *worker.Job) ([]byte, string, error) {
		return job.Payload, job.ContentType, nil
	})
	if err := thumbnails.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
