"""The check `accounting`: adds up the GPU requests of pods, and compares the sums with KAI's figures."""
