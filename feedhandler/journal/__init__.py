"""The persistent queue: journalled, cancellable, recovered in milliseconds."""
