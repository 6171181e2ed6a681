"""A cluster as the caller may read it: facts about its objects, its agents, its Prometheus."""
