package waterwheel_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	waterwheel "waterwheel.dev/go"
	pb "waterwheel.dev/go/waterwheel/v1"
	"waterwheel.dev/go/worker"
)

// isWorker is set for this program where it is the worker of a test.
const isWorker = "WORKER_OF_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(isWorker) == "" {
		os.Exit(m.Run())
	}
	if err := program().Run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// evil is an error that cannot say what it is.
type evil struct{}

func (evil) Error() string { panic("evil") }

// program is a worker whose handlers do what the payload says.
func program() *worker.Worker {
	its := &worker.Worker{Name: "test", Slots: 2}
	its.Handle("do", func(ctx context.Context, job *worker.Job) ([]byte, string, error) {
		switch string(job.Payload) {
		case "panic":
			panic("a bug")
		case "exit":
			runtime.Goexit()
		case "evil":
			return nil, "", evil{}
		case "nil":
			return nil, "", (*worker.Failed)(nil)
		case "long":
			return nil, "", &worker.Failed{Code: "NOT_FOUND\xff", Message: strings.Repeat("ü\xff\x00", 10_000)}
		case "type":
			return []byte("x"), strings.Repeat("\xffü", 1000), nil
		case "past":
			return nil, "", &worker.Later{After: -1}
		case "scope":
			return nil, "", &worker.Failed{Code: "ABORTED", Later: &worker.Later{After: 1, Scope: "ALL"}}
		case "timeless":
			return nil, "", &worker.Later{Scope: worker.Kind}
		case "hold":
			return nil, "", &worker.Later{After: 10 * time.Minute, Message: "429", Scope: worker.Scope(job.Labels["scope"])}
		case "again":
			if job.Attempt == 1 {
				return nil, "", fmt.Errorf("too early: %w", &worker.Later{After: 1, Uncounted: true})
			}
			return fmt.Append(nil, job.Attempt), "", nil
		case "late":
			go func() {
				<-job.Context().Done()
				job.Progress(1, "after the answer")
				_ = job.Output([]byte("after the answer"))
			}()
		case "large":
			return make([]byte, 3<<20), "", nil
		case "wait":
			<-ctx.Done()
			return nil, "", ctx.Err()
		}
		return job.Payload, "text/plain", nil
	})
	its.Batch("batch", 4, func(jobs []*worker.Job) ([]worker.Result, error) {
		results := make([]worker.Result, len(jobs))
		for number, job := range jobs {
			results[number] = worker.Result{Output: fmt.Append(nil, len(jobs)), ContentType: "text/plain"}
			switch string(job.Payload) {
			case "fail":
				results[number].Err = &worker.Failed{Code: "NOT_FOUND", Message: "no such picture"}
			case "wait":
				<-job.Context().Done()
				time.Sleep(100 * time.Millisecond)
			case "crash":
				os.Exit(3)
			case "panic":
				panic("a bug")
			case "exit":
				runtime.Goexit()
			case "few":
				return results[1:], nil
			}
		}
		return results, nil
	})
	return its
}

// ends are how each malformed result ends, by its payload.
var ends = map[string]string{
	"panic":    "INTERNAL: panic: a bug",
	"exit":     "INTERNAL: the handler ended its goroutine",
	"evil":     "INTERNAL: panic: evil",
	"past":     "INTERNAL: a time is not negative, as -1ns is",
	"scope":    `INTERNAL: a scope is OneJob, LimitKey or Kind, not "ALL"`,
	"timeless": "INTERNAL: the scope KIND needs a time",
	"nil":      "INTERNAL: panic: runtime error: invalid memory address or nil pointer dereference",
}

func TestATestOfAHandlerNeedsNoServer(t *testing.T) {
	for payload, end := range ends {
		if tested := program().Test(t.Context(), &worker.Run{Kind: "do", Payload: []byte(payload)}); tested.Err.Error() != end {
			t.Errorf("%s: %v", payload, tested.Err)
		}
	}
	run := &worker.Run{Kind: "conformance", Labels: map[string]string{"task": "chunks"}}
	tested := program().Test(t.Context(), run)
	if string(tested.Output) != "0\n1\n2\nend\n" || tested.ContentType != "text/plain" || tested.Err != nil {
		t.Errorf("%+v", tested)
	}
	tested = program().Test(t.Context(), &worker.Run{Kind: "do", Payload: []byte("hold"), Labels: map[string]string{"scope": "KIND"}})
	if later := tested.Err.Later; later == nil || later.After != 10*time.Minute || later.Scope != worker.Kind || later.Uncounted {
		t.Errorf("%+v", tested.Err)
	}
	for _, kind := range []string{"do", "batch"} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		tested = program().Test(ctx, &worker.Run{Kind: kind, Payload: []byte("wait")})
		if tested.Err == nil || tested.Err.Error() != "CANCELLED: stopped because of CALLER" {
			t.Errorf("%+v", tested)
		}
	}
	for _, kind := range []string{"unknown", ""} {
		if tested = program().Test(t.Context(), &worker.Run{Kind: kind}); tested.Err.Code != "UNIMPLEMENTED" {
			t.Error("the worker has two kinds", tested)
		}
	}
	single := &worker.Worker{}
	single.Handle("only", func(_ context.Context, job *worker.Job) ([]byte, string, error) { return job.Payload, "", nil })
	if tested = single.Test(t.Context(), &worker.Run{Payload: []byte("x")}); string(tested.Output) != "x" {
		t.Error(tested)
	}
}

// child is a server that starts this program; far is one that it attaches to.
func child() string {
	program, _ := os.Executable()
	return fmt.Sprintf(`
[pool.one]
workers = 8
[program.test]
command = [%q]
jobs_per_process = 8
env = { %s = "1" }
%s`, program, isWorker, strings.ReplaceAll(kinds, "?", `program = "test"`))
}

const kinds = `
[kind.do]
pool = "one"
limit.per_key.concurrency = 99
?
[kind.batch]
pool = "one"
?
[store]
memory = true
`

var far = "[pool.one]\nwhen_full = \"wait\"\n" + strings.ReplaceAll(kinds, "?", "remote = true")

// work attaches this program's worker until the test ends.
func work(t *testing.T, options waterwheel.Options, addresses ...string) {
	ctx, leave := context.WithCancel(context.Background())
	ended := make(chan error)
	attached := program()
	attached.Options, attached.Addresses = options, addresses
	go func() { ended <- attached.Run(ctx) }()
	t.Cleanup(func() {
		leave()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestWorkersKeepTheProtocol(t *testing.T) {
	program, _ := os.Executable()
	for _, attach := range [][]string{{}, {"--attach"}} {
		keepsTheProtocol(t, program, attach...)
	}
}

// The file that `worker new` writes, with the module as the command says.
func TestTheWorkerThatIsWrittenKeepsTheProtocol(t *testing.T) {
	folder := t.TempDir()
	run := func(name string, args ...string) string {
		t.Helper()
		command := exec.Command(name, args...)
		command.Dir = folder
		said, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		return string(said)
	}
	program, _ := filepath.Abs(binary())
	said := run(program, "worker", "new", "--language", "go", "thumb")
	_, install, _ := strings.Cut(said, "CLONE:\n")
	install, _, _ = strings.Cut(install, "\n\n")
	clone, _ := filepath.Abs("../..")
	run("sh", "-c", strings.ReplaceAll(install, "CLONE", clone))
	run("go", "vet", ".")
	run("go", "build", "-o", "thumb", ".")
	keepsTheProtocol(t, filepath.Join(folder, "thumb"))
}

func keepsTheProtocol(t *testing.T, program string, attach ...string) {
	t.Helper()
	args := append([]string{"worker", "test", "--output", "json", "--pass-env", isWorker}, attach...)
	kit := exec.Command(binary(), append(args, "--", program)...)
	kit.Env = append(os.Environ(), isWorker+"=1")
	rows, err := kit.Output()
	if err != nil {
		t.Error(err)
	}
	passed := 0
	for row := range strings.Lines(string(rows)) {
		var read struct{ Verdict string }
		if err := json.Unmarshal([]byte(row), &read); err != nil || read.Verdict != "pass" {
			t.Error(row)
		}
		passed++
	}
	if passed < 15 {
		t.Errorf("%d rows", passed)
	}
}

// malformed shows that every result is an answer, and that one costs no other.
func malformed(t *testing.T, client *waterwheel.Client) {
	for payload, end := range ends {
		_, err := client.Submit(within(t, patience), job("do", payload))
		failed := as[*waterwheel.Failed](t, err)
		if _, message, _ := strings.Cut(end, ": "); failed.Message != message {
			t.Errorf("%s: %+v", payload, failed)
		}
	}
	_, err := client.Submit(within(t, patience), job("do", "long"))
	if failed := as[*waterwheel.Failed](t, err); !strings.HasPrefix(failed.Message, "ü�") || len(failed.Message) > 4096 {
		t.Errorf("%+v", failed)
	}
	for payload, size := range map[string]int{"type": 1, "late": 4, "large": 3 << 20, "plain": 5} {
		result, err := client.Submit(within(t, patience), job("do", payload))
		if err != nil || len(result.Output) != size {
			t.Errorf("%s: %v", payload, err)
		}
	}
	_, err = client.Submit(within(t, 200*time.Millisecond), job("do", "wait"))
	as[*waterwheel.Missed](t, err)
}

// batches shows that a member that fails, or is cancelled, harms no other.
func batches(t *testing.T, client *waterwheel.Client) {
	var all sync.WaitGroup
	submit := func(ctx context.Context, payload string, check func(*waterwheel.Result, error)) {
		all.Go(func() { check(client.Submit(ctx, job("batch", payload))) })
	}
	long, cancel := context.WithCancel(within(t, patience))
	submit(long, "wait", func(_ *waterwheel.Result, err error) {
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	eventually(t, "it runs", func() bool { return held(t, client) == 1 })
	for _, payload := range []string{"a", "fail"} {
		submit(within(t, patience), payload, func(result *waterwheel.Result, err error) {
			if payload == "fail" {
				as[*waterwheel.Failed](t, err)
			} else if err != nil || string(result.Output) != "2" {
				t.Error(result, err)
			}
		})
	}
	eventually(t, "the others wait", func() bool { return held(t, client) == 3 })
	cancel()
	// The answer of the cancelled one comes before its batch ends.
	eventually(t, "it is answered", func() bool { return held(t, client) == 2 })
	all.Wait()
	for payload, end := range map[string]string{
		"panic": "panic: a bug", "exit": "the handler ended its goroutine", "few": "the handler returned 0 results for 1 jobs",
	} {
		_, err := client.Submit(within(t, patience), job("batch", payload))
		if failed := as[*waterwheel.Failed](t, err); failed.Message != end {
			t.Error(failed)
		}
	}
	if _, err := client.Submit(within(t, patience), job("batch", "a")); err != nil {
		t.Error(err)
	}
}

// later shows that a job that is for later waits, and with it its limit key or its kind.
func later(t *testing.T, client *waterwheel.Client) {
	again := &waterwheel.Job{Kind: "do", Payload: []byte("again"), LimitKey: "other"}
	created, err := client.Create(within(t, patience), "", again, &waterwheel.JobOptions{Retry: &pb.RetryPolicy{MaxAttempts: 1}})
	if err != nil {
		t.Fatal(err)
	}
	// The first attempt does not count.
	if ended, err := created.Wait(within(t, patience)); err != nil || string(ended.Output) != "2" {
		t.Error(ended, err)
	}
	for _, its := range []struct {
		scope        worker.Scope
		key, another string
		limit        string
	}{{worker.LimitKey, "a", "a", "key_hold"}, {worker.Kind, "b", "c", "hold"}} {
		labels := map[string]string{"scope": string(its.scope)}
		hold := &waterwheel.Job{Kind: "do", Payload: []byte("hold"), LimitKey: its.key, Labels: labels}
		_, err := client.Submit(within(t, patience), hold)
		if failed := as[*waterwheel.Failed](t, err); failed.Code != codes.Unavailable || failed.Message != "429" {
			t.Error(failed)
		}
		_, err = client.Submit(within(t, patience), &waterwheel.Job{Kind: "do", LimitKey: its.another})
		if refused := as[*waterwheel.Refused](t, err); refused.Metadata["limit"] != its.limit || refused.RetryAfter < 50*time.Second {
			t.Error(refused)
		}
	}
}

func TestAChild(t *testing.T) {
	client, _ := serve(t, child())
	malformed(t, client)
	later(t, client)
	batches(t, client)
	_, err := client.Submit(within(t, patience), job("batch", "crash"))
	if lost := as[*waterwheel.Lost](t, err); lost.Reason != "WORKER_CRASHED" {
		t.Error(lost)
	}
	if _, err := client.Submit(within(t, patience), job("batch", "a")); err != nil {
		t.Error(err)
	}
}

func TestAnAttachedWorker(t *testing.T) {
	client, server := serve(t, far)
	_, port, _ := net.SplitHostPort(server.address)
	work(t, waterwheel.Options{}, "localhost:"+port)
	malformed(t, client)
	later(t, client)
}

func TestAWorkerComesBackToAServerThatWasKilled(t *testing.T) {
	client, server := serve(t, far)
	work(t, waterwheel.Options{}, server.address)
	lost := make(chan error)
	go func() {
		_, err := client.Submit(within(t, patience), job("do", "wait"))
		lost <- err
	}()
	if _, err := client.Submit(within(t, patience), job("do", "x")); err != nil {
		t.Error(err)
	}
	server.kill()
	as[*waterwheel.Lost](t, <-lost)
	start(t, far, server.address)
	if _, err := dial(t, server.address, waterwheel.Options{}).Submit(within(t, patience), job("do", "x")); err != nil {
		t.Error(err)
	}
}

func TestBatchesOfAnAttachedWorker(t *testing.T) {
	client, server := serve(t, far)
	attached := program()
	attached.Slots, attached.Addresses = 8, []string{server.address}
	ctx, leave := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- attached.Run(ctx) }()
	batches(t, client)
	leave()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAWorkerEndsWhenNoServerHasHadAJobForIt(t *testing.T) {
	config := strings.Replace(far, "when_full", "attached.idle_leave = \"1s\"\nwhen_full", 1)
	idle, one := serve(t, config)
	client, other := serve(t, config)
	waiting := &worker.Worker{Addresses: []string{one.address, other.address}}
	for _, kind := range []string{"do", "batch"} {
		waiting.Handle(kind, func(_ context.Context, job *worker.Job) ([]byte, string, error) {
			if len(job.Payload) > 0 {
				time.Sleep(2500 * time.Millisecond)
			}
			return nil, "", nil
		})
	}
	ended := make(chan error, 1)
	go func() { ended <- waiting.Run(context.Background()) }()
	if _, err := client.Submit(within(t, patience), job("do", "long")); err != nil {
		t.Error(err)
	}
	if _, err := idle.Submit(within(t, patience), job("do", "")); err != nil || len(ended) > 0 {
		t.Error("the worker ended early", err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A worker has its slots once, and not at each of its servers.
func TestOneBudgetOfSlots(t *testing.T) {
	var running, most atomic.Int32
	counting := &worker.Worker{Slots: 2}
	for _, kind := range []string{"do", "batch"} {
		counting.Handle(kind, func(context.Context, *worker.Job) ([]byte, string, error) {
			now := running.Add(1)
			defer running.Add(-1)
			for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
			}
			time.Sleep(2 * time.Millisecond)
			return nil, "", nil
		})
	}
	ctx, leave := context.WithCancel(context.Background())
	ended := make(chan error)
	var all sync.WaitGroup
	for range 2 {
		client, server := serve(t, far)
		counting.Addresses = append(counting.Addresses, server.address)
		all.Go(func() {
			jobs := make([]*waterwheel.Job, 100)
			for number := range jobs {
				jobs[number] = job("do", "")
			}
			for outcome := range client.SubmitMany(within(t, patience), of(jobs...)) {
				if outcome.Err != nil {
					t.Error(outcome.Err)
				}
			}
		})
	}
	go func() { ended <- counting.Run(ctx) }()
	all.Wait()
	leave()
	if err := <-ended; err != nil || most.Load() != 2 {
		t.Error(err, most.Load())
	}
}

// secure writes a certificate and a key set into a folder, and returns a token and the roots.
func secure(t *testing.T, folder string) (string, *x509.CertPool) {
	public, private, _ := ed25519.GenerateKey(rand.Reader)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, DNSNames: []string{"localhost"}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	key, _ := x509.MarshalPKCS8PrivateKey(private)
	encode := base64.RawURLEncoding.EncodeToString
	for name, text := range map[string]string{
		"tls.crt":   string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})),
		"tls.key":   string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})),
		"jwks.json": fmt.Sprintf(`{"keys":[{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","kid":"1","x":%q}]}`, encode(public)),
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	claims := fmt.Sprintf(`{"iss":"https://issuer.example","aud":"waterwheel","sub":"user-7","exp":%d}`, time.Now().Add(time.Hour).Unix())
	signed := encode([]byte(`{"alg":"EdDSA","kid":"1"}`)) + "." + encode([]byte(claims))
	roots := x509.NewCertPool()
	parsed, _ := x509.ParseCertificate(certificate)
	roots.AddCert(parsed)
	return signed + "." + encode(ed25519.Sign(private, []byte(signed))), roots
}

func TestTLSAndTokens(t *testing.T) {
	folder := t.TempDir()
	token, roots := secure(t, folder)
	server := start(t, fmt.Sprintf(`
[server.tls]
cert = "%[1]s/tls.crt"
key = "%[1]s/tls.key"
[auth.jwt]
jwks = "%[1]s/jwks.json"
issuer = "https://issuer.example"
audience = ["waterwheel"]
[auth.rule.all]
principals = ["jwt:user-*"]
rpcs = ["Submit", "Attach", "Stats"]
%[2]s`, folder, far), "127.0.0.1:0")
	_, port, _ := net.SplitHostPort(server.address)
	options := waterwheel.Options{TLS: &tls.Config{RootCAs: roots}, Token: token}
	work(t, options, "localhost:"+port)
	client := dial(t, "https://localhost:"+port, options)
	if _, err := client.Submit(within(t, patience), job("do", "x")); err != nil {
		t.Error(err)
	}
	file := filepath.Join(folder, "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	byAddress := waterwheel.Options{TLS: options.TLS, TokenFile: file, Authority: "localhost"}
	if _, err := dial(t, server.address, byAddress).Submit(within(t, patience), job("do", "x")); err != nil {
		t.Error(err)
	}
	anonymous := dial(t, "localhost:"+port, waterwheel.Options{TLS: options.TLS})
	_, err := anonymous.Submit(within(t, patience), job("do", "x"))
	if refused := as[*waterwheel.Refused](t, err); refused.Reason != "NO_CREDENTIALS" {
		t.Error(refused)
	}
}

func TestUnixSockets(t *testing.T) {
	path := "unix:" + filepath.Join(t.TempDir(), "socket")
	start(t, far, path)
	work(t, waterwheel.Options{}, path)
	if _, err := dial(t, path, waterwheel.Options{}).Submit(within(t, patience), job("do", "x")); err != nil {
		t.Error(err)
	}
}
