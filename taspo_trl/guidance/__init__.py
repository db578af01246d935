"""What the guided branch is shown: one file for each privileged context, and the stage that has them made."""
