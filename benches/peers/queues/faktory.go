package main

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/contribsys/faktory/client"
	worker "github.com/contribsys/faktory_worker_go"
)

// Number of concurrent jobs. Each runs on a goroutine that waits for Redis three times.
const workers = 64

type faktoryQueue struct {
	server    *exec.Cmd
	folder    string
	pool      *client.Pool
	processed uint64
}

func newFaktory(program string) *faktoryQueue {
	free := must(net.Listen("tcp", "127.0.0.1:0"))
	address := free.Addr().String()
	free.Close()
	os.Setenv("FAKTORY_URL", "tcp://"+address)
	q := &faktoryQueue{folder: must(os.MkdirTemp("", "faktory")), pool: must(client.NewPool(2 * workers))}
	q.server = exec.Command(program, "-l", "error", "-b", address, "-w", "127.0.0.1:0", "-d", q.folder, "-c", q.folder)
	must(0, q.server.Start())
	for attempts := 0; q.pool.With((*client.Client).Flush) != nil; attempts++ {
		if attempts == 500 {
			panic("Faktory does not start")
		}
		time.Sleep(20 * time.Millisecond)
	}
	// With the default settings, jobs between two snapshots could be lost.
	for _, setting := range [][]string{{"appendonly", "yes"}, {"appendfsync", "always"}, {"save", ""}} {
		set := append([]string{"-s", filepath.Join(q.folder, "redis.sock"), "config", "set"}, setting...)
		must(0, exec.Command("redis-cli", set...).Run())
	}
	manager := worker.NewManager()
	manager.Concurrency = workers
	manager.Register("echo", func(_ context.Context, arguments ...any) error {
		started(arguments[0].(string))
		return nil
	})
	go manager.RunWithContext(context.Background())
	// Each of its goroutines starts at a random time within 2.2 s.
	time.Sleep(3 * time.Second)
	return q
}

func (q *faktoryQueue) stop() {
	q.server.Process.Signal(syscall.SIGTERM)
	q.server.Wait()
	os.RemoveAll(q.folder)
}

// Faktory pushes the jobs of a batch to Redis one by one, so more concurrent callers are faster.
func (*faktoryQueue) batches() (int, int) { return workers, 50 }

func (q *faktoryQueue) many(payloads []string) {
	jobs := make([]*client.Job, len(payloads))
	for i, payload := range payloads {
		jobs[i] = client.NewJob("echo", payload)
	}
	must(0, q.pool.With(func(c *client.Client) error {
		refused, err := c.PushBulk(jobs)
		if len(refused) > 0 {
			panic(refused)
		}
		return err
	}))
}

func (q *faktoryQueue) one(payload string) {
	must(0, q.pool.With(func(c *client.Client) error { return c.Push(client.NewJob("echo", payload)) }))
}

func (q *faktoryQueue) ended(jobs int) {
	q.processed += uint64(jobs)
	for processed := uint64(0); processed < q.processed; time.Sleep(5 * time.Millisecond) {
		must(0, q.pool.With(func(c *client.Client) error {
			state, err := c.CurrentState()
			if err == nil {
				processed = state.Data.TotalProcessed
			}
			return err
		}))
	}
}
