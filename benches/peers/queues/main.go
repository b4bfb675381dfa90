// Runs jobs with another queue, and prints the measurements as a line of JSON:
//
//	queues river URL JOBS SECONDS
//	queues faktory PROGRAM JOBS SECONDS
package main

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/contribsys/faktory/client"
	worker "github.com/contribsys/faktory_worker_go"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// Number of callers that create jobs one by one.
const singles = 32

type queue interface {
	// The fastest number of callers that create jobs in batches, and the size of a batch.
	batches() (callers, size int)
	many(payloads []string)
	one(payload string)
	// Waits until this number of further jobs has ended.
	ended(jobs int)
}

// Times from just before a job was created to the start of its work.
var waits struct {
	sync.Mutex
	all []time.Duration
}

// A payload of 16 bytes holds the time when its job was created.
func payload() string { return strconv.FormatInt(time.Now().UnixMicro(), 10) }

func started(payload string) {
	wait := time.Since(time.UnixMicro(must(strconv.ParseInt(payload, 10, 64))))
	waits.Lock()
	waits.all = append(waits.all, wait)
	waits.Unlock()
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// Splits numbers below `jobs` among concurrent callers.
func each(callers, step, jobs int, call func(number int)) {
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for number := caller * step; number < jobs; number += callers * step {
				call(number)
			}
		})
	}
	all.Wait()
}

func main() {
	jobs, seconds := must(strconv.Atoi(os.Args[3])), must(strconv.ParseFloat(os.Args[4], 64))
	// The libraries log to standard output, which is reserved for the line of JSON.
	stdout := os.Stdout
	os.Stdout = os.Stderr
	var queue queue
	switch os.Args[1] {
	case "river":
		queue = newRiver(os.Args[2])
	case "faktory":
		faktory := newFaktory(os.Args[2])
		defer faktory.stop()
		queue = faktory
	}
	callers, size := queue.batches()
	start := time.Now()
	each(callers, size, jobs, func(first int) {
		payloads := make([]string, min(size, jobs-first))
		for i := range payloads {
			payloads[i] = payload()
		}
		queue.many(payloads)
	})
	accepted := time.Since(start).Seconds()
	queue.ended(jobs)
	elapsed := time.Since(start).Seconds()

	waits.all = nil
	rate := float64(jobs) / elapsed / 2
	timed := int(rate * seconds)
	start = time.Now()
	each(singles, 1, timed, func(number int) {
		time.Sleep(time.Until(start.Add(time.Duration(float64(number) / rate * float64(time.Second)))))
		queue.one(payload())
	})
	queue.ended(timed)
	slices.Sort(waits.all)
	at := func(percent int) float64 { return waits.all[timed*percent/100].Seconds() * 1e3 }
	must(0, json.NewEncoder(stdout).Encode(map[string]any{
		"jobs": jobs, "accepted_seconds": accepted, "ended_seconds": elapsed, "p50_ms": at(50), "p99_ms": at(99),
	}))
}

var background = context.Background()

type echo struct {
	Payload string `json:"payload"`
}

func (echo) Kind() string { return "echo" }

type echoWorker struct{ river.WorkerDefaults[echo] }

func (echoWorker) Work(ctx context.Context, job *river.Job[echo]) error {
	started(job.Args.Payload)
	return river.RecordOutput(ctx, job.Args.Payload)
}

type riverQueue struct {
	client *river.Client[pgx.Tx]
	// One event for each job whose completion is committed.
	events <-chan *river.Event
}

func newRiver(url string) riverQueue {
	config := must(pgxpool.ParseConfig(url))
	config.MaxConns = singles
	driver := riverpgxv5.New(must(pgxpool.NewWithConfig(background, config)))
	must(must(rivermigrate.New(driver, nil)).Migrate(background, rivermigrate.DirectionUp, nil))
	workers := river.NewWorkers()
	river.AddWorker(workers, echoWorker{})
	// The settings of River's own benchmark.
	client := must(river.NewClient(driver, &river.Config{
		FetchCooldown:     2 * time.Millisecond,
		FetchPollInterval: 20 * time.Millisecond,
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}},
		Workers:           workers,
	}))
	kinds := []river.EventKind{river.EventKindJobCompleted}
	events, _ := client.SubscribeConfig(&river.SubscribeConfig{ChanSize: 1 << 20, Kinds: kinds})
	must(0, client.Start(background))
	return riverQueue{client, events}
}

func (riverQueue) batches() (int, int) { return 4, 1000 }

func (q riverQueue) many(payloads []string) {
	params := make([]river.InsertManyParams, len(payloads))
	for i, payload := range payloads {
		params[i].Args = echo{payload}
	}
	must(q.client.InsertManyFast(background, params))
}

func (q riverQueue) one(payload string) { must(q.client.Insert(background, echo{payload}, nil)) }

func (q riverQueue) ended(jobs int) {
	for range jobs {
		<-q.events
	}
}

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
