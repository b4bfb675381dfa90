package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

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
