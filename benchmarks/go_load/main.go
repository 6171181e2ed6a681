// A client that sends reviews to a webhook at a steady rate: the load of benchmarks/busy_webhook.py.
//
// Each review is sent at its time, whether or not earlier ones are answered, over kept TLS connections. A
// latency counts from the time at which the review was due, so a client that is late does not hide it. The
// standard library only.
package main

import (
	"bufio"
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
	"sort"
	"sync"
	"time"
)

// Result is what the client prints, as JSON; latencies are in milliseconds.
type Result struct {
	Rate     float64        `json:"rate"`
	Answers  map[string]int `json:"answers"`
	P50      float64        `json:"p50"`
	P99      float64        `json:"p99"`
	Longest  float64        `json:"longest"`
	LateSend float64        `json:"late_send_p99"`
}

type job struct {
	url  string
	body []byte
	due  time.Time
}

type outcome struct {
	kind          string
	latency, late time.Duration
}

func readLines(path string) [][]byte {
	file, err := os.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	var lines [][]byte
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, 8<<20)
	for scanner.Scan() {
		lines = append(lines, append([]byte(nil), scanner.Bytes()...))
	}
	if err := scanner.Err(); err != nil || len(lines) == 0 {
		log.Fatalf("%s: no reviews: %v", path, err)
	}
	return lines
}

func clientOf(ca string, connections int, limit time.Duration) *http.Client {
	roots := x509.NewCertPool()
	for _, path := range bytes.Split([]byte(ca), []byte(",")) {
		pem, err := os.ReadFile(string(path))
		if err != nil || !roots.AppendCertsFromPEM(pem) {
			log.Fatalf("%s: no certificate: %v", path, err)
		}
	}
	return &http.Client{
		Timeout: limit,
		Transport: &http.Transport{
			TLSClientConfig:     &tls.Config{RootCAs: roots},
			MaxConnsPerHost:     connections,
			MaxIdleConnsPerHost: connections,
			DisableCompression:  true,
		},
	}
}

func review(client *http.Client, each job) string {
	answer, err := client.Post(each.url, "application/json", bytes.NewReader(each.body))
	if err != nil {
		return "error: no answer"
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	switch {
	case err != nil:
		return "error: no whole answer"
	case bytes.Contains(body, []byte(`"patch"`)):
		return "patched"
	default:
		return fmt.Sprintf("status %d without a patch", answer.StatusCode)
	}
}

func quantile(sorted []float64, part float64) float64 {
	return sorted[min(len(sorted)-1, int(part*float64(len(sorted))))]
}

func main() {
	bodies := flag.String("reviews", "", "file with one review on each line")
	ca := flag.String("ca", "", "files of trusted CAs, separated by commas")
	rate := flag.Float64("rate", 100, "reviews a second")
	seconds := flag.Float64("seconds", 10, "duration")
	connections := flag.Int("connections", 50, "most connections to one replica")
	flag.Parse()
	if flag.NArg() == 0 || *rate <= 0 || *seconds <= 0 {
		log.Fatal("give the URL of each replica, and a rate and a duration above 0")
	}
	reviews, client := readLines(*bodies), clientOf(*ca, *connections, 10*time.Second)
	count := max(1, int(*rate**seconds))
	jobs, outcomes := make(chan job, count), make(chan outcome, count)
	var workers sync.WaitGroup
	for range *connections * flag.NArg() * 2 {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for each := range jobs {
				late := time.Since(each.due)
				kind := review(client, each)
				outcomes <- outcome{kind, time.Since(each.due), late}
			}
		}()
	}
	began := time.Now()
	for number := range count {
		due := began.Add(time.Duration(float64(number) / *rate * float64(time.Second)))
		time.Sleep(time.Until(due))
		jobs <- job{flag.Arg(number % flag.NArg()), reviews[number%len(reviews)], due}
	}
	close(jobs)
	workers.Wait()
	took := time.Since(began)
	close(outcomes)
	result := Result{Rate: float64(count) / took.Seconds(), Answers: map[string]int{}}
	var latencies, lates []float64
	for each := range outcomes {
		result.Answers[each.kind]++
		latencies = append(latencies, float64(each.latency)/float64(time.Millisecond))
		lates = append(lates, float64(each.late)/float64(time.Millisecond))
	}
	sort.Float64s(latencies)
	sort.Float64s(lates)
	result.P50, result.P99 = quantile(latencies, 0.5), quantile(latencies, 0.99)
	result.Longest, result.LateSend = latencies[len(latencies)-1], quantile(lates, 0.99)
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		log.Fatal(err)
	}
}
