// ---- all of it, in the order of the page
setUpFocus();
setUpPictures();
setUpOwn();
setUpPorts();
setUpFlows();
setUpTimeline();
setUpTensors();
document.documentElement.dataset.ready = "yes";
