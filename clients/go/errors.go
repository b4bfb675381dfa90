package waterwheel

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	rpc "google.golang.org/genproto/googleapis/rpc/status"
	pb "waterwheel.dev/go/waterwheel/v1"
)

// Details are what every error of a call has.
type Details struct {
	// Code is that of gRPC.
	Code codes.Code
	// Reason is one of the table in docs/calling.md; UNREACHABLE if no server was reached, and else the name of the code if
	// the error is not the server's.
	Reason string
	// Message is for people. Help is what to do, in one line, if the server says it.
	Message, Help string
	// Metadata has the figures of the reason, such as `job`, `queue_ms` and `needed_timeout_ms`.
	Metadata map[string]string
	cause    error
}

func (details *Details) Error() string {
	name, help := details.Reason, ""
	if name == "HANDLER_FAILED" {
		name = codeName(details.Code)
	}
	if details.Help != "" {
		help = " (" + details.Help + ")"
	}
	return name + ": " + details.Message + help
}

func codeName(number codes.Code) string { return code.Code_name[int32(number)] }

// Unwrap returns the error of gRPC.
func (details *Details) Unwrap() error { return details.cause }

// Refused is a job that did not start. Sending it again is safe.
type Refused struct {
	Details
	// RetryAfter is when the server asks for another try; 0 if it names no time.
	RetryAfter time.Duration
}

// Missed is a job that did not end before its deadline, or before one of its timeouts.
type Missed struct {
	Details
	// Started says whether it may have begun.
	Started bool
}

// Failed is a job whose handler said no.
type Failed struct {
	Details
	// Stderr is what the program of an `exec` kind printed last on standard error.
	Stderr string
}

// Lost is a job of which nobody knows how it ended: the server, its worker or the connection went away.
type Lost struct {
	Details
	// Started is true if the job had begun, and false if that is unknown.
	Started bool
}

// The message of a program that exited, which its last words follow.
var exited = regexp.MustCompile(`(?s)\bexit(?:ed with)? (?:code |status )?\d+: (.*)`)

// classify makes one of the four errors of one of gRPC. What the caller itself cancelled stays context.Canceled.
func classify(ctx context.Context, err error, wasSent bool) error {
	if err == nil {
		return nil
	} else if errors.Is(ctx.Err(), context.Canceled) {
		return context.Canceled
	}
	said := status.Convert(err)
	// A server that drains refuses the streams that it has not read, which gRPC says only in words.
	return failureOf(said, err, wasSent && !strings.HasSuffix(said.Message(), "REFUSED_STREAM"))
}

func failureOf(status *status.Status, cause error, wasSent bool) error {
	details := Details{Code: status.Code(), Reason: "UNREACHABLE", Message: status.Message(), cause: cause}
	execution := "NOT_STARTED"
	if wasSent || details.Code == codes.DeadlineExceeded {
		details.Reason, execution = codeName(details.Code), "UNKNOWN"
	}
	var delay time.Duration
	for _, detail := range status.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			details.Reason, details.Metadata = detail.Reason, detail.Metadata
			execution = detail.Metadata["execution"]
		case *errdetails.RetryInfo:
			delay = detail.RetryDelay.AsDuration()
		case *errdetails.Help:
			for _, link := range detail.Links {
				details.Help = link.Description
			}
		}
	}
	return details.failure(execution, delay)
}

func (details Details) failure(execution string, delay time.Duration) error {
	switch {
	case details.Reason == "HANDLER_FAILED", details.Reason == "OUTPUT_TOO_LARGE":
		failed := &Failed{Details: details}
		if found := exited.FindStringSubmatch(details.Message); found != nil {
			failed.Stderr = found[1]
		}
		return failed
	case details.Code == codes.DeadlineExceeded:
		return &Missed{details, execution != "NOT_STARTED"}
	case execution == "NOT_STARTED":
		return &Refused{details, delay}
	}
	return &Lost{details, execution == "STARTED"}
}

// ofFailure is the error of one job of many, if it has one.
func ofFailure(failure *pb.JobFailure) error {
	if failure == nil {
		return nil
	}
	said := status.FromProto(&rpc.Status{Code: failure.Code, Message: failure.Message, Details: failure.Details})
	return failureOf(said, said.Err(), true)
}

// ofAttempt is the error of a detached job that ended without a result.
func ofAttempt(job *pb.DetachedJob) error {
	last := &pb.Attempt{}
	if count := len(job.Attempts); count > 0 {
		last = job.Attempts[count-1]
	}
	details := Details{Code: codes.Code(last.Code), Reason: last.Outcome, Message: last.Message}
	details.cause = status.Error(details.Code, details.Message)
	switch {
	case job.State == pb.JobState_JOB_STATE_EXPIRED:
		details.Code, details.Reason = codes.DeadlineExceeded, "EXPIRED"
	case job.State == pb.JobState_JOB_STATE_CANCELLED:
		details.Code, details.Reason = codes.Canceled, "CANCELLED"
	}
	if len(job.Attempts) == 0 {
		return details.failure("NOT_STARTED", 0)
	}
	return details.failure("STARTED", 0)
}
