"""Series of pods in the form of kube-state-metrics v2.11 and later (its pod-metrics.md)."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ListedPod:
    """A pod as kube-state-metrics lists it."""

    name: str
    uid: str
    namespace: str = "inference"

    def series(self, metric: str, value: float = 1, **labels: str) -> str:
        named = {"namespace": self.namespace, "pod": self.name, "uid": self.uid, **labels}
        text = ",".join(f'{key}="{label}"' for key, label in named.items())
        return f"{metric}{{{text}}} {value}\n"


def waiting_and_placed(now: float) -> str:
    """Return the series of two pods of KAI's: one waits for 10 minutes, one was placed after 5."""
    waits, placed = (ListedPod(name=name, uid=name) for name in ("waits", "placed"))
    return "".join(
        [
            *(
                pod.series("kube_pod_created", now - 600)
                + pod.series("kube_pod_scheduler", name="kai-scheduler")
                + pod.series("kube_pod_labels", label_kai_scheduler_queue="vision")
                for pod in (waits, placed)
            ),
            waits.series("kube_pod_status_phase", phase="Pending"),
            placed.series("kube_pod_status_scheduled_time", now - 300),
        ]
    )


def failing(uid: str, now: float) -> str:
    """Return the series of a pod whose two containers restarted once each, and which failed in the end."""
    pod = ListedPod(name="classify", uid=uid)
    return "".join(
        [
            pod.series("kube_pod_created", now - 600),
            pod.series("kube_pod_status_phase", phase="Failed"),
            *(
                pod.series("kube_pod_container_status_restarts_total", container=reason.lower())
                + pod.series(
                    "kube_pod_container_status_last_terminated_reason",
                    container=reason.lower(),
                    reason=reason,
                )
                for reason in ("Error", "OOMKilled")
            ),
        ]
    )
