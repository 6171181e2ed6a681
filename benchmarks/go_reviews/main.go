// Sends reviews to replicas of a webhook at a steady rate, each at its time whether or not earlier ones are answered.
//
// It is the client of benchmarks/busy_webhook.py: a client in Python cannot send 1,000 reviews a second beside the
// replicas. A latency counts from the moment at which the review was due, so that a late client is not a fast webhook.
// The result is one JSON object on standard output.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// A replica of the webhook, and connections to it.
type replica struct {
	client http.Client
	url    string
}

// newReplica reads `URL,FILE`, where the file is the CA of the replica's certificate.
func newReplica(target string, connections int) replica {
	url, file, _ := strings.Cut(target, ",")
	pem, err := os.ReadFile(file)
	if err != nil {
		log.Fatal(err)
	}
	trust := x509.NewCertPool()
	trust.AppendCertsFromPEM(pem)
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: trust}, MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections,
	}
	return replica{http.Client{Transport: transport, Timeout: 30 * time.Second}, url}
}

// send sends one review, and returns what the answer is.
func (to *replica) send(body []byte) string {
	answer, err := to.client.Post(to.url, "application/json", bytes.NewReader(body))
	if err != nil {
		return "no answer"
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	if err == nil && bytes.Contains(content, []byte(`"patch"`)) {
		return "patched"
	}
	return fmt.Sprintf("status %d without a patch", answer.StatusCode)
}

func main() {
	rate := flag.Float64("rate", 100, "reviews a second")
	seconds := flag.Float64("seconds", 10, "duration")
	connections := flag.Int("connections", 50, "most connections to one replica")
	bodies := flag.String("bodies", "", "file with a review on each line")
	flag.Parse()
	content, err := os.ReadFile(*bodies)
	if err != nil {
		log.Fatal(err)
	}
	reviews := bytes.Split(bytes.TrimSpace(content), []byte("\n"))
	var replicas []replica
	for _, target := range flag.Args() {
		replicas = append(replicas, newReplica(target, *connections))
	}

	count := int(*rate * *seconds)
	answers, milliseconds := map[string]int{}, make([]float64, count)
	var lock sync.Mutex
	var sent sync.WaitGroup
	began := time.Now()
	for number := range count {
		due := began.Add(time.Duration(float64(number) / *rate * float64(time.Second)))
		time.Sleep(time.Until(due))
		sent.Add(1)
		go func() {
			defer sent.Done()
			answer := replicas[number%len(replicas)].send(reviews[number%len(reviews)])
			milliseconds[number] = float64(time.Since(due).Microseconds()) / 1000
			lock.Lock()
			answers[answer]++
			lock.Unlock()
		}()
	}
	sent.Wait()
	kept := float64(count) / time.Since(began).Seconds()
	slices.Sort(milliseconds)
	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"kept": kept, "answers": answers,
		"p50": milliseconds[count/2], "p99": milliseconds[count*99/100], "longest": milliseconds[count-1],
	})
}
