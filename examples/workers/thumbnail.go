// A worker of waterwheel that serves the kind `thumbnail`. It needs Go 1.21 and nothing else.
//
//	waterwheel worker test -- go run thumbnail.go     checks that it keeps the protocol
//	waterwheel dev --worker thumbnail.go              serves it, and starts it anew when this file changes
//
// Load what is slow to load (a model, a connection) in main, once. It is kept from job to job.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"runtime/debug"
	"sync"
)

// Does one job: returns the result and its content type.
func run(ctx context.Context, job *Job) ([]byte, string, error) {
	return job.Payload, job.ContentType, nil
}

// What `waterwheel worker test` asks for. It shows all that a handler can do; yours may do without it.
func conformance(ctx context.Context, job *Job) ([]byte, string, error) {
	switch job.Labels["task"] {
	case "chunks":
		for number := 0; number < 3; number++ {
			job.Output([]byte(fmt.Sprintln(number)))
		}
		return []byte("end\n"), "text/plain", nil
	case "progress":
		job.Progress(0.5, "half of it")
	case "fail":
		return nil, "", &Failed{Code: "NOT_FOUND", Message: "no such picture"}
	case "wait":
		<-ctx.Done()
		return nil, "", &Failed{Code: "CANCELLED", Message: "stopped because of " + context.Cause(ctx).Error()}
	case "print":
		fmt.Println("a line on standard output")
	case "crash":
		os.Exit(3)
	}
	return job.Payload, job.ContentType, nil
}

var kinds = map[string]func(context.Context, *Job) ([]byte, string, error){"thumbnail": run, "conformance": conformance}

// Failed ends a job with a gRPC status code. Any other error ends it with INTERNAL.
type Failed struct {
	ID        string `json:"id"`
	Code      string `json:"code"`
	Message   string `json:"message"`
	Retryable *bool  `json:"retryable"`
}

func (failed *Failed) Error() string { return failed.Message }

// Job is what a handler gets.
type Job struct {
	ID          string            `json:"id"`
	JobID       string            `json:"job_id"`
	Kind        string            `json:"kind"`
	ContentType string            `json:"content_type"`
	BudgetMS    int64             `json:"budget_ms"`
	RequestID   string            `json:"request_id"`
	Tenant      string            `json:"tenant"`
	Labels      map[string]string `json:"labels"`
	Attempt     int               `json:"attempt"`
	Token       string            `json:"token"`
	Payload     []byte            `json:"-"`
}

// Output sends a piece of the result now, which a caller of `Stream` gets as a chunk.
func (job *Job) Output(piece []byte) { send("output", map[string]any{"id": job.ID}, piece) }

// Progress says how far the job is, from 0 to 1.
func (job *Job) Progress(fraction float64, message string) {
	said := map[string]any{"id": job.ID, "message": message}
	if !math.IsNaN(fraction) && !math.IsInf(fraction, 0) {
		said["fraction"] = fraction
	}
	send("progress", said, nil)
}

// The protocol: a line of JSON on descriptor 3 or 4, then as many bytes as its `bytes` says.
var (
	requests  = bufio.NewReader(os.NewFile(3, "requests"))
	responses = bufio.NewWriter(os.NewFile(4, "responses"))
	sending   sync.Mutex
	running   sync.WaitGroup
)

type request struct {
	Run    *Job `json:"run"`
	Cancel *struct {
		ID     string `json:"id"`
		Reason string `json:"reason"`
	} `json:"cancel"`
	Leave *struct{} `json:"leave"`
	Bytes int       `json:"bytes"`
}

func send(name string, message any, data []byte) {
	line, err := json.Marshal(map[string]any{name: message, "bytes": len(data)})
	if err != nil {
		log.Fatal(err)
	}
	sending.Lock()
	defer sending.Unlock()
	responses.Write(append(line, '\n'))
	responses.Write(data)
	if responses.Flush() != nil {
		os.Exit(0) // The service is gone.
	}
}

// serve runs one job. Every way out of its handler is an answer: a panic and the end of its goroutine too.
func serve(ctx context.Context, job *Job) {
	var result []byte
	contentType, err := "", errors.New("the handler ended its goroutine")
	defer running.Done()
	defer func() {
		if fault := recover(); fault != nil {
			debug.PrintStack()
			err = fmt.Errorf("panic: %v", fault)
		}
		answer(job, result, contentType, err)
	}()
	handler := kinds[job.Kind]
	if handler == nil {
		err = &Failed{Code: "UNIMPLEMENTED", Message: "no handler for the kind " + job.Kind}
		return
	}
	result, contentType, err = handler(ctx, job)
}

func answer(job *Job, result []byte, contentType string, err error) {
	if err == nil {
		send("done", map[string]any{"id": job.ID, "content_type": contentType}, result)
		return
	}
	failed := Failed{Code: "INTERNAL", Message: err.Error()}
	if said := new(Failed); errors.As(err, &said) {
		failed = *said
	}
	failed.ID = job.ID
	failed.Message = failed.Message[:min(len(failed.Message), 2000)]
	send("failed", failed, nil)
}

func main() {
	names := []string{}
	for name := range kinds {
		names = append(names, name)
	}
	send("ready", map[string]any{"protocol": 1, "kinds": names, "name": "thumbnail"}, nil)
	cancels := sync.Map{}
	for {
		line, err := requests.ReadBytes('\n')
		if err != nil {
			os.Exit(0) // The service is gone.
		}
		var message request
		if err := json.Unmarshal(line, &message); err != nil {
			log.Fatal(err)
		}
		data := make([]byte, message.Bytes)
		if _, err := io.ReadFull(requests, data); err != nil {
			os.Exit(0)
		}
		switch {
		case message.Run != nil:
			job := message.Run
			job.Payload = data
			ctx, cancel := context.WithCancelCause(context.Background())
			cancels.Store(job.ID, cancel)
			running.Add(1)
			go func() {
				defer cancel(nil)
				defer cancels.Delete(job.ID)
				serve(ctx, job)
			}()
		case message.Cancel != nil:
			if cancel, ok := cancels.Load(message.Cancel.ID); ok {
				cancel.(context.CancelCauseFunc)(errors.New(message.Cancel.Reason))
			}
		case message.Leave != nil:
			go func() {
				running.Wait()
				os.Exit(0)
			}()
		}
	}
}
