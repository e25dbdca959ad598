"""Container images of the host cluster: built from ordinary Dockerfiles, loaded into nodes.

specs      which images there are, and the hash of everything that goes into one
engine     docker, podman or buildah, whichever is there and works
rootfs     a Debian base without a registry (debootstrap), for each of them
build      build what has changed
bundle     images as files in .bundle/images, verified before anyone uses them
load       into a containerd node, what it does not have yet
"""
