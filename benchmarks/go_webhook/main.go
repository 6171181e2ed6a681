// A minimal mutating webhook: it gives each pod with one whole GPU half of it, without any policy.
//
// It is the lower bound for a webhook in Go in benchmarks/admission_forms.py: the standard library only, no
// metrics, no log, no checks.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
)

type quantities map[string]any

type container struct {
	Name      string
	Resources struct{ Limits, Requests quantities }
}

type review struct {
	Request struct {
		UID    string
		Object struct {
			Metadata struct{ Labels, Annotations map[string]string }
			Spec     struct{ Containers []container }
		}
	}
}

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

const gpu = "nvidia.com/gpu"

func entries(path string, present bool, values map[string]string) []operation {
	if !present {
		return []operation{{"add", path, values}}
	}
	var patch []operation
	for key, value := range values {
		patch = append(patch, operation{"add", path + "/" + key, value})
	}
	return patch
}

func patchOf(pod *review) []operation {
	metadata := pod.Request.Object.Metadata
	patch := []operation{{"add", "/spec/schedulerName", "kai-scheduler"}}
	queue := map[string]string{"kai.scheduler~1queue": "queue-a"}
	if metadata.Labels == nil {
		queue = map[string]string{"kai.scheduler/queue": "queue-a"}
	}
	patch = append(patch, entries("/metadata/labels", metadata.Labels != nil, queue)...)
	for index, each := range pod.Request.Object.Spec.Containers {
		if _, asks := each.Resources.Limits[gpu]; !asks {
			continue
		}
		share := map[string]string{"gpu-fraction": "0.5", "gpu-fraction-container-name": each.Name}
		patch = append(patch, entries("/metadata/annotations", metadata.Annotations != nil, share)...)
		path := fmt.Sprintf("/spec/containers/%d/resources/", index)
		patch = append(patch, operation{Op: "remove", Path: path + "limits/nvidia.com~1gpu"})
		if _, asks := each.Resources.Requests[gpu]; asks {
			patch = append(patch, operation{Op: "remove", Path: path + "requests/nvidia.com~1gpu"})
		}
	}
	return patch
}

func mutate(writer http.ResponseWriter, request *http.Request) {
	var pod review
	if err := json.NewDecoder(request.Body).Decode(&pod); err != nil {
		http.Error(writer, err.Error(), http.StatusBadRequest)
		return
	}
	patch, err := json.Marshal(patchOf(&pod))
	if err != nil {
		http.Error(writer, err.Error(), http.StatusInternalServerError)
		return
	}
	writer.Header().Set("Content-Type", "application/json")
	json.NewEncoder(writer).Encode(map[string]any{
		"apiVersion": "admission.k8s.io/v1",
		"kind":       "AdmissionReview",
		"response": map[string]any{
			"uid": pod.Request.UID, "allowed": true, "patchType": "JSONPatch", "patch": patch,
		},
	})
}

func main() {
	certificate := flag.String("cert", "", "file of the certificate")
	key := flag.String("key", "", "file of its key")
	flag.Parse()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr())
	http.HandleFunc("/mutate", mutate)
	log.Fatal(http.ServeTLS(listener, nil, *certificate, *key))
}
