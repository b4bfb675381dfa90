// A simple grpc-go server that does the work of waterwheel's built-in kinds on pools of goroutines.
//
// It prints "listening ADDR", and ends when its standard input is closed.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "waterwheel.dev/go/waterwheel/v1"
)

// The default number of waterwheel's workers for jobs that wait.
const patient = 64

type task struct {
	job  *pb.Job
	done chan ended
}

type ended struct {
	output []byte
	err    error
}

// pool is a bounded number of goroutines behind a bounded queue.
type pool struct{ tasks chan task }

func newPool(workers int, work func(*pb.Job) ([]byte, error)) *pool {
	p := &pool{make(chan task, 4096)}
	for range workers {
		go func() {
			for t := range p.tasks {
				output, err := work(t.job)
				t.done <- ended{output, err}
			}
		}()
	}
	return p
}

func (p *pool) run(ctx context.Context, job *pb.Job) ([]byte, error) {
	t := task{job, make(chan ended, 1)}
	select {
	case p.tasks <- t:
	default:
		return nil, status.Error(codes.ResourceExhausted, "the queue is full")
	}
	select {
	case e := <-t.done:
		return e.output, e.err
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

func digest(job *pb.Job) ([]byte, error) {
	sum := sha256.Sum256(job.Payload)
	digits := make([]byte, hex.EncodedLen(len(sum)))
	hex.Encode(digits, sum[:])
	return digits, nil
}

func program(job *pb.Job) ([]byte, error) {
	var output, errors bytes.Buffer
	command := exec.Command("/bin/true")
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(job.Payload), &output, &errors
	if err := command.Run(); err != nil {
		return nil, status.Error(codes.Unknown, err.Error())
	}
	return output.Bytes(), nil
}

type pools map[string]*pool

func submit(server any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	request := new(pb.SubmitRequest)
	if err := decode(request); err != nil {
		return nil, err
	}
	kind, known := server.(pools)[request.GetJob().GetKind()]
	if !known {
		return nil, status.Error(codes.InvalidArgument, "unknown kind")
	}
	output, err := kind.run(ctx, request.Job)
	if err != nil {
		return nil, err
	}
	return &pb.SubmitResponse{Result: &pb.JobResult{Output: output}}, nil
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	cores := runtime.NumCPU()
	kinds := pools{
		"echo":   newPool(patient, func(job *pb.Job) ([]byte, error) { return job.Payload, nil }),
		"sha256": newPool(cores, digest),
		"true":   newPool(cores, program),
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(8 << 20))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "waterwheel.v1.WorkerPoolService",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Submit", Handler: submit}},
	}, kinds)
	fmt.Println("listening", listener.Addr())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	if err := server.Serve(listener); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
