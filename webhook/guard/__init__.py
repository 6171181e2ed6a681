"""The guard: ValidatingAdmissionPolicies that protect what KAI reads from changes by users."""
